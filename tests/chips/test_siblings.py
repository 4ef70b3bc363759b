"""What a chip takes over from a sibling: shares of a promise, no more than its power allows."""

import json
from pathlib import Path

import pytest

from torchtally.chips import USERS_TABLE, chip, load_chips
from torchtally.chips.capabilities import CAPABILITIES
from torchtally.errors import UsageError
from torchtally.report.chip import chip_text
from torchtally.report.documents.chips import chips_document
from torchtally.report.keys import dumps
from torchtally.timing.roofline.origins import ATTENTION_OF
from torchtally.timing.roofline.sustained import FAMILIES

MEASURED = """
[[chip]]
name = "Big"
vendor = "Me"
architecture = "One"
multiprocessors = 100
boost_clock_hz = 2e9
l2_cache_bytes = 1000
memory_bytes = 64
memory_bandwidth_bytes_per_s = 1000
achieved_bandwidth_bytes_per_s = 800
tdp_watts = 100
source = "its sheet"
[chip.peaks]
float32 = 50
bfloat16 = { flop_per_s = 200, achieved_flop_per_s = 150, achieved_source = "a bench" }
"""
SIBLING = """
[[chip]]
name = "Small"
vendor = "Me"
architecture = "One"
memory_bytes = 64
memory_bandwidth_bytes_per_s = 500
tdp_watts = {watts}
measured_as = {{ chip = "{of}", reason = "the same dies" }}
source = "its sheet"
[chip.peaks]
float32 = 25
bfloat16 = 100
"""


def small(folder: Path, watts: int = 100, of: str = "Big", more: str = "") -> Path:
    path = folder / "chips.toml"
    path.write_text(MEASURED + SIBLING.format(watts=watts, of=of) + more)
    return path


def test_rates_are_scaled_by_what_data_sheets_say(tmp_path: Path) -> None:
    big, taken = load_chips(small(tmp_path))
    assert taken.achieved_bandwidth_bytes_per_s == 400  # 80 % of 500
    assert taken.peaks["bfloat16"].achieved_flop_per_s == 75  # 75 % of 100
    assert taken.peaks["float32"].achieved_flop_per_s is None
    assert (taken.multiprocessors, taken.l2_cache_bytes) == (100, 1000)
    assert taken.boost_clock_hz is None
    assert set(taken.inherited.values()) == {"Big"} == set(taken.siblings)
    assert taken.source_of("l2_cache_bytes") == "by Big's: its sheet"
    assert taken.peaks["bfloat16"].achieved_source == "by Big's: a bench"
    assert big.is_measured
    assert not taken.is_measured
    assert not big.siblings


def test_power_limits_what_is_taken_over(tmp_path: Path) -> None:
    """A third of the power multiplies a third of 150, which is less than 75 % of 100."""
    _, taken = load_chips(small(tmp_path, watts=33))
    assert taken.peaks["bfloat16"].achieved_flop_per_s == pytest.approx(150 * 0.33)


def test_what_it_says_of_itself_stays(tmp_path: Path) -> None:
    path = small(tmp_path)
    text = path.read_text().replace("tdp_watts = 100\nmeasured", "l2_cache_bytes = 7\nmeasured")
    path.write_text(text)
    _, taken = load_chips(path)
    assert taken.l2_cache_bytes == 7
    assert "l2_cache_bytes" not in taken.inherited


def test_the_one_that_was_measured_is_named_through_another(tmp_path: Path) -> None:
    path = small(tmp_path)
    third = SIBLING.format(watts=100, of="Small").replace('name = "Small"', 'name = "Third"')
    path.write_text(path.read_text() + third)
    assert load_chips(path)[2].siblings == ("Big",)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        ("Bigg", r"Small: measured_as: no chip of Me is called 'Bigg'; did you mean Big\?"),
        ("Small", "Small: measured_as: siblings in a circle: Small, Small"),
        ("H100-SXM", "no chip of Me is called 'H100-SXM'"),
    ],
)
def test_a_sibling_that_is_none(tmp_path: Path, of: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_chips(small(tmp_path, of=of))


def test_a_chip_of_ones_own_is_measured_as_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "chips.toml"
    own = SIBLING.format(watts=500, of="H100-SXM").replace('"Me"', '"NVIDIA"')
    path.write_text(own)
    monkeypatch.setenv(USERS_TABLE, str(path))
    assert chip("Small").multiprocessors == chip("H100-SXM").multiprocessors
    assert chip("Small").siblings == ("H100-SXM",)


def test_memory_may_be_as_another_ones() -> None:
    """An H20's tensor cores are an H100's, its memory a GH200's."""
    assert chip("H20").inherited["bfloat16"] == "H100-SXM"
    assert chip("H20").inherited["achieved_bandwidth_bytes_per_s"] == "GH200"
    assert chip("GB300").inherited["l2_cache_bytes"] == "B200"


def test_the_page_and_the_document_say_whose_rates_they_are() -> None:
    page = chip_text(chip("MI350X"))
    assert "measured as MI355X: the same dies, cooled by air" in page
    assert "4.90 TB/s    by MI355X's rates" in page
    (row,) = json.loads(dumps(chips_document([chip("MI350X")])))["chips"]
    assert row["inherited"] == {"achieved_bandwidth_bytes_per_s": "MI355X", "bfloat16": "MI355X"}
    assert row["measured_as"]["chip"] == "MI355X"


def test_each_class_says_where_its_constants_were_measured() -> None:
    """Of a GB200 products themselves, its memory on a B200; float16 by the design's constants."""
    (row,) = json.loads(dumps(chips_document([chip("GB200")])))["chips"]
    found = {origin["name"]: (origin["chip"], origin["basis"]) for origin in row["origins"]}
    assert found["products, bfloat16"] == ("GB200", "measured")
    assert found["products, float16"] == ("B200", "design")
    assert found["device memory"] == ("B200", "sibling")
    assert found["products, float32"] == ("", "data sheet")
    page = chip_text(chip("GB200"))
    assert "device memory               B200, its sibling's" in page
    assert "products, float32           its data sheet, and what chips reach of theirs" in page


def test_chips_that_gave_constants_are_of_that_design() -> None:
    for design, family in FAMILIES.items():
        for name in filter(None, (family.float32_of, family.matrix_of)):
            assert chip(name).sm.design == design
    for design, name in ATTENTION_OF.items():
        assert chip(name).sm.matrix_instruction == DESIGNS[design].matrix_instruction


DESIGNS = {row.design: row for row in CAPABILITIES}
