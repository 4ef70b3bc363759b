"""The table agrees with physics and with its sources; names find their own chip and no other."""

import ast
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from subprocess import run

import pytest

from torchtally import hardware
from torchtally.errors import UnknownChipError, UnsupportedError, UsageError
from torchtally.hardware import Chip, Peak, chip, chips, cluster, load_chips

ALL = pytest.mark.parametrize("one", chips(), ids=lambda one: one.name)


# Physics ------------------------------------------------------------------------------------------


def ratio(one: Chip, dtype: str, other: str) -> float | None:
    if dtype not in one.peaks or other not in one.peaks:
        return None
    return one.peak_flop_per_s(dtype) / one.peak_flop_per_s(other)


def faults(one: Chip) -> list[str]:
    """What no chip of its kind can be: an empty list for a sound row."""
    expected: dict[tuple[str, str], float] = {}
    if one.vendor == "NVIDIA":
        is_geforce = "GeForce" in one.device_name
        expected = {
            ("bfloat16", "float16"): 1,  # one multiplier array serves both
            ("bfloat16", "tf32"): 2,  # half the bits, twice the rate
            ("float8_e4m3fn", "bfloat16"): 2,
            ("float16_accumulate_float16", "float16"): 2 if is_geforce else 1,
            ("float4_e2m1fn_x2", "float8_e4m3fn"): 2,
        }
        if is_geforce:
            expected["float4_e2m1fn_x2", "float8_e4m3fn"] = 4  # fp8 sums are halved, fp4's are not
        if one.compute_capability == (10, 3):
            expected["float4_e2m1fn_x2", "float8_e4m3fn"] = 3  # Blackwell Ultra
    found = [
        f"{dtype} is {actual:.2f} x {other}, not {times} x"
        for (dtype, other), times in expected.items()
        if (actual := ratio(one, dtype, other)) is not None and abs(actual / times - 1) > 0.03
    ]
    for dtype, peak in one.peaks.items():
        if not 1e12 <= peak.flop_per_s <= 2e16:
            found.append(f"{dtype}: {peak.flop_per_s:g} FLOP/s is out of this world")
    if not 2e11 <= one.memory_bandwidth_bytes_per_s <= 1e13:
        found.append("memory bandwidth")
    if not 0.85 <= one.memory_bytes / (one.memory_label_bytes or one.memory_bytes) <= 1.1:
        found.append("memory is not what the label says")
    if one.total_memory_bytes > one.memory_bytes:
        found.append("a program is told more than there is")
    return found


@ALL
def test_no_row_breaks_physics(one):
    assert faults(one) == []


@pytest.mark.parametrize(
    "broken",
    [
        {"peaks": {"float8_e4m3fn": Peak(3958e12, ""), "bfloat16": Peak(989e12, "")}},  # sparse
        {"peaks": {"bfloat16": Peak(989.4, "")}},  # TFLOP/s where FLOP/s belong
        {"memory_bandwidth_bytes_per_s": 3350.0},
        {"memory_bytes": 80},
        {"program_memory_bytes": 10**12},
    ],
)
def test_the_check_of_physics_can_fail(broken):
    assert faults(replace(chip("H100-SXM"), **broken))


def test_hopper_doubles_its_rate_with_every_halving_of_the_bits():
    for name in ("H100-SXM", "H100-PCIe", "H100-NVL", "H200", "GH200"):
        peak = chip(name).peak_flop_per_s
        assert peak("float8_e4m3fn") == pytest.approx(2 * peak("bfloat16"), rel=1e-3)
        assert peak("bfloat16") == pytest.approx(2 * peak("tf32"), rel=1e-3)


def test_h100_sxm_is_its_multiprocessors_times_its_clock():
    h100 = chip("H100-SXM")
    tensor_cores, fma_a_cycle, clock = 132 * 4, 512, 1.83e9
    assert h100.multiprocessors == 132
    assert h100.peak_flop_per_s("bfloat16") == pytest.approx(
        tensor_cores * fma_a_cycle * 2 * clock, rel=1e-3
    )
    assert h100.peak_flop_per_s("float32") == 67e12
    assert h100.memory_bandwidth_bytes_per_s == 3.35e12


def test_a100_as_on_its_datasheet():
    a100 = chip("A100-SXM")
    assert a100.peak_flop_per_s("bfloat16") == 312e12
    assert a100.peak_flop_per_s("tf32") == 156e12
    assert a100.peak_flop_per_s("float32") == 19.5e12
    assert a100.memory_bandwidth_bytes_per_s == 2.039e12
    assert chip("A100-SXM-40GB").memory_bandwidth_bytes_per_s == 1.555e12


def test_geforce_halves_sums_in_float32_and_workstation_cards_do_not():
    for name, times in {"RTX-3090": 2, "RTX-4090": 2, "RTX-5090": 2, "RTX-A6000": 1}.items():
        assert ratio(chip(name), "float16_accumulate_float16", "float16") == pytest.approx(
            times, rel=1e-3
        )


def test_one_mi250x_device_is_half_of_its_package():
    die = chip("AMD Instinct MI250X")
    assert die.peak_flop_per_s("bfloat16") == 383e12 / 2
    assert die.memory_bytes == 64 * 10**9


# Numbers that other projects have had wrong -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "right", "wrong"),
    [
        ("NVIDIA H100 PCIe", "bfloat16", 756e12, 989.4e12),  # every H100 taken for an SXM
        ("NVIDIA H100 NVL", "bfloat16", 835.5e12, 1671e12),  # sparse
        ("NVIDIA H200", "float8_e4m3fn", 1978.9e12, 3958e12),  # sparse
        ("NVIDIA H200", "bfloat16", 989.4e12, 312e12),  # no row, so an A100
        ("NVIDIA L40S", "bfloat16", 362.05e12, 312e12),  # matched in lower case only, so an A100
        ("NVIDIA L40", "bfloat16", 181e12, 121e12),  # matched "L4" first
        ("NVIDIA GB200", "bfloat16", 2500e12, 2250e12),  # contains "B200"
        ("NVIDIA A10G", "bfloat16", 70e12, 125e12),  # an A10's figure
        ("NVIDIA L4", "bfloat16", 121e12, 242e12),  # sparse
        ("NVIDIA GeForce RTX 3090", "bfloat16", 71e12, 35.6e12),  # the float32 rate
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2e12, 82.6e12),  # the float32 rate
        ("NVIDIA GeForce RTX 4090", "float16", 165.2e12, 330.3e12),  # sums in float16
        ("NVIDIA RTX A6000", "bfloat16", 154.8e12, 38.7e12),  # the float32 rate
        ("Tesla V100-PCIE-16GB", "float16", 112e12, 125e12),  # the SXM card's
        ("AMD Instinct MI250X", "bfloat16", 191.5e12, 383e12),  # two devices' worth
    ],
)
def test_known_mistakes_of_other_tables(name, dtype, right, wrong):
    assert chip(name).peak_flop_per_s(dtype) == right != wrong


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("V100-SXM-16GB", "bfloat16"),
        ("V100-SXM-16GB", "tf32"),
        ("T4", "bfloat16"),
        ("A100-SXM", "float8_e4m3fn"),
        ("TPU-v5e", "float32"),
        ("H100-SXM", "float4_e2m1fn_x2"),
        ("B300", "int8"),  # sources disagree
        ("H100-SXM", "complex64"),
    ],
)
def test_a_missing_number_is_an_error_that_lists_what_is_there(name, dtype):
    with pytest.raises(UsageError, match=f"{name} has no peak for {dtype}.*It has .*16"):
        chip(name).peak_flop_per_s(dtype)


def test_dtypes_are_spelled_as_torch_spells_them():
    h100 = chip("H100-SXM")
    assert h100.peak_flop_per_s("torch.bfloat16") == h100.peak_flop_per_s("bfloat16")
    assert h100.peak_flop_per_s("float8_e5m2") == h100.peak_flop_per_s("float8_e4m3fn")
    assert chip("TPU-v4").peak_flop_per_s("bfloat16") == 275e12


# Sources ------------------------------------------------------------------------------------------


@ALL
def test_every_number_has_a_source(one):
    assert re.match(r"https://\S+$", one.source)
    assert all(peak.source for peak in one.peaks.values())
    assert one.peaks
    assert set(one.sources) <= {f.name for f in fields(Chip)}
    for fact, source in one.sources.items():
        assert getattr(one, fact) is not None, f"a source for {fact}, which is absent"
        assert len(source) > 10
    if one.price is not None:
        assert "http" in one.price.source


@ALL
def test_a_sparse_rate_stands_beside_its_dense_half_only(one):
    for peak in one.peaks.values():
        if peak.sparse_flop_per_s is not None:
            assert peak.flop_per_s == pytest.approx(peak.sparse_flop_per_s / 2, rel=0.01)


def test_memory_says_whether_it_is_the_label():
    assert chip("H100-SXM").memory_bytes == 81559 * 2**20
    assert not chip("H100-SXM").is_memory_estimated
    assert chip("TPU-v4").memory_bytes == 32 * 10**9
    assert chip("TPU-v4").is_memory_estimated


def test_source_of_a_fact_is_its_own_or_the_rows():
    h100 = chip("H100-SXM")
    assert "hopper-architecture" in h100.source_of("multiprocessors")
    assert h100.source_of("memory_bandwidth_bytes_per_s") == h100.source


# Names --------------------------------------------------------------------------------------------


@ALL
def test_every_name_leads_back_to_its_chip(one):
    for name in (one.name, *one.aliases, *one.driver_names):
        assert chip(name) is one
        assert chip(name.lower().replace("-", "_")) is one
        assert chip(name.upper().replace("-", " ")) is one


@pytest.mark.parametrize(
    ("driver_name", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM"),
        ("A100-SXM4-40GB", "A100-SXM-40GB"),  # as older drivers say it
        ("NVIDIA A100 80GB PCIe", "A100-PCIe"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H200", "H200-SXM"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("GeForce RTX 3090", "RTX-3090"),
        ("Tesla T4", "T4"),
        ("Apple M4 Max", "M4-Max"),
    ],
)
def test_driver_names(driver_name, name):
    assert chip(driver_name).name == name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("H100", ["H100-SXM", "H100-PCIe", "H100-NVL"]),  # three chips; none is the default
        ("A100", ["A100-PCIe-40GB", "A100-PCIe", "A100-SXM-40GB", "A100-SXM"]),
        ("h100-smx", ["H100-SXM"]),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", ["RTX-4090"]),  # another die
        ("NVIDIA GeForce RTX 4090 D", ["RTX-4090"]),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", ["H100-SXM"]),  # a seventh of one
        ("H20", ["H200-SXM", "H200-NVL"]),
        ("banana", []),
        ("", []),
        ("NVIDIA", []),
    ],
)
def test_an_unknown_name_is_an_error_that_lists_near_ones(name, near):
    with pytest.raises(UnknownChipError) as caught:
        chip(name)
    message = str(caught.value)
    assert repr(name) in message
    assert "`tally gpus`" in message
    for each in near:
        assert each in message
    assert near or "Did you mean" not in message


def test_clusters():
    assert (cluster("8xH100-SXM").count, cluster("8xH100-SXM").chip.name) == (8, "H100-SXM")
    assert cluster("1024 x h100_sxm").count == 1024
    assert cluster("A100-SXM").count == 1
    for text in ("0xH100-SXM", "", "  "):
        with pytest.raises(UsageError, match="8xH100-SXM"):
            cluster(text)
    with pytest.raises(UnknownChipError, match="H100-SXM"):
        cluster("8xH100")


# What torch would say -----------------------------------------------------------------------------


def test_properties_answer_as_torch_does():
    properties = chip("H100-SXM").properties
    assert properties.name == "NVIDIA H100 80GB HBM3"
    assert (properties.major, properties.minor) == (9, 0)
    assert properties.multi_processor_count == 132
    assert properties.L2_cache_size == 50 * 2**20
    assert 79 * 2**30 < properties.total_memory < chip("H100-SXM").memory_bytes


def test_only_cuda_devices_have_cuda_properties():
    for one in chips():
        assert (one.compute_capability is not None) == (one.vendor == "NVIDIA")
    with pytest.raises(UnsupportedError, match="TPU-v4 is not a CUDA device"):
        _ = chip("TPU-v4").properties


# Chips of the user's own --------------------------------------------------------------------------

MINE = """
[[chip]]
name = "Mine-1"
vendor = "Me"
architecture = "One"
memory_bytes = 64_000_000_000
memory_bandwidth_bytes_per_s = 1e12
source = "https://example.com/mine"
[chip.peaks]
bfloat16 = 100e12
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


def test_a_chip_of_the_users_own(tmp_path):
    (mine,) = load_chips(written(tmp_path, MINE))
    assert mine.peak_flop_per_s("bfloat16") == 100e12
    assert chip("mine_1", among=(mine, *chips())) is mine
    assert cluster("4xMine-1", among=[mine]).count == 4
    assert chip("T4", among=(mine, *chips())).name == "T4"
    with pytest.raises(UnknownChipError):
        chip("Mine-1")  # the table itself is unchanged


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "Mine-1"', "", "chip 1: name: is missing"),
        ('name = "Mine-1"', "name = 7", "chip 1: name: expected a text, found 7"),
        ("memory_bytes =", "memory_byte =", "memory_byte: no such key; did you mean memory_bytes?"),
        ("memory_bytes = 64_000_000_000", "", "memory_bytes: is missing"),
        ("64_000_000_000", '"64 GB"', "memory_bytes: expected a whole number above zero"),
        ("64_000_000_000", "true", "memory_bytes: expected a whole number above zero"),
        ("= 1e12", "= -1e12", "memory_bandwidth_bytes_per_s: expected a number above zero"),
        ("= 1e12", "= nan", "memory_bandwidth_bytes_per_s: expected a number above zero"),
        ("[chip.peaks]\nbfloat16 = 100e12", "", "Mine-1: peaks: is missing"),
        ("bfloat16 = 100e12", "bf16 = 100e12", "peaks: bf16: no such key; did you mean bfloat16?"),
        ("bfloat16 = 100e12", "zzz = 100e12", "peaks: zzz: no such key; known are float64"),
        ("bfloat16 = 100e12", 'bfloat16 = "100 T"', "peaks: bfloat16: expected a number"),
        (
            "100e12",
            "{ flop_per_s = 200e12, sparse_flop_per_s = 200e12 }",
            "peaks: bfloat16: sparse_flop_per_s: 2e+14 is not twice flop_per_s",
        ),
        ("[chip.peaks]", "compute_capability = 9.0\n[chip.peaks]", "in [9, 0], found 9.0"),
        ("[chip.peaks]", "aliases = 'M1'\n[chip.peaks]", "aliases: expected a list of texts"),
        ("[chip.peaks]", "link = 'NVLink'\n[chip.peaks]", "link: expected a table"),
        ("[chip.peaks]", "price = {}\n[chip.peaks]", "Mine-1: price: usd_per_hour: is missing"),
        ("[[chip]]", "[chip]", "Each begins with a line [[chip]]"),
        ("[[chip]]", "[[chip", "cannot be read as a table of chips"),
    ],
)
def test_errors_name_the_file_the_chip_and_the_key(tmp_path, old, new, complaint):
    assert old in MINE
    path = written(tmp_path, MINE.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(complaint)) as caught:
        load_chips(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_two_chips_of_one_name_are_an_error(tmp_path):
    with pytest.raises(UsageError, match="Mine-1 and mine_1 all answer to 'mine1'"):
        load_chips(written(tmp_path, MINE + MINE.replace("Mine-1", "mine_1")))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"absent\.toml"):
        load_chips(tmp_path / "absent.toml")


# The module itself --------------------------------------------------------------------------------


def test_the_table_loads_without_torch_or_anything_else_heavy():
    code = "import sys, torchtally.hardware as h; h.chips(); print(*sys.modules)"
    loaded = run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "numpy", "rich", "msgspec"} & set(loaded.split())


def test_no_chip_is_named_in_the_code():
    """A chip is a row. A name in the code (outside documentation) would be a special case."""
    tree = ast.parse(Path(hardware.__file__).read_text())
    assert not [f"{node}" for node in ast.walk(tree) if _names_a_chip(node)]
    assert [node for node in ast.walk(ast.parse('x = "H100-SXM"')) if _names_a_chip(node)]


def _names_a_chip(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in {one.name for one in chips()}
