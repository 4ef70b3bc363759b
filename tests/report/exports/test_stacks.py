"""Stacks as files: speedscope's own page, Brendan Gregg's text, and a picture."""

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.builders import TraceBuilder, frame, mm_call, site
from tests.report.browser import CHROMIUM, browser
from tests.report.browser import MISSING as NO_CHROMIUM
from tests.report.test_text import realistic
from tests.viewers import MISSING, SPEEDSCOPE
from torchtally.chips import chip
from torchtally.ledger import Ledger, account
from torchtally.report.exports import Wanted, export
from torchtally.report.exports.flamegraph import LEAST_WIDTH, MARGIN, WIDTH, tree
from torchtally.timing.roofline import Roofline
from torchtally.views.stacks import QUANTITIES, stacks

SVG = "{http://www.w3.org/2000/svg}"
needs_speedscope = pytest.mark.skipif(not SPEEDSCOPE.exists(), reason=MISSING)
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason=NO_CHROMIUM)


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return account(realistic(), roofline=Roofline(chip("H100-SXM")))


def text_of(ledger: Ledger, name: str, quantity: str = "") -> str:
    text = export(ledger, name, Wanted(quantity)).parts[""]
    assert isinstance(text, str)
    return text


# speedscope --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(ledger: Ledger) -> dict[str, Any]:
    profile: dict[str, Any] = json.loads(text_of(ledger, "speedscope"))
    return profile


def test_a_profile_for_each_quantity(document: dict[str, Any], ledger: Ledger) -> None:
    assert [profile["unit"] for profile in document["profiles"]] == [
        "nanoseconds", "none", "bytes", "bytes", "bytes",
    ]  # fmt: skip
    for profile, quantity in zip(document["profiles"], QUANTITIES, strict=True):
        assert profile["endValue"] == sum(profile["weights"]) == stacks(ledger, quantity).total
        assert len(profile["samples"]) == len(profile["weights"])
        frames = document["shared"]["frames"]
        assert all(frames[number]["name"] for sample in profile["samples"] for number in sample)


def test_without_times_the_profile_of_time_is_missing_and_said() -> None:
    exported = export(account(realistic()), "speedscope")
    content = exported.parts[""]
    assert len(json.loads(content)["profiles"]) == len(QUANTITIES) - 1
    assert "Times are unknown, so there is no profile of time." in exported.remarks


@needs_speedscope
def test_the_file_has_speedscopes_schema(document: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((SPEEDSCOPE / "file-format-schema.json").read_text())
    jsonschema.validate(document, schema)
    del document["profiles"][0]["unit"]  # the checker can fail
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


@pytest.mark.thorough("the exports beside it")
@needs_speedscope
@needs_chromium
def test_speedscopes_own_page_opens_it(ledger: Ledger, tmp_path: Path) -> None:
    """As its command does: the file in a script that the page loads."""
    packed = base64.b64encode(text_of(ledger, "speedscope").encode()).decode()
    script = tmp_path / "profile.js"
    script.write_text(f"speedscope.loadFileFromBase64('run.speedscope.json', '{packed}')")
    with browser() as chromium:
        page = chromium.open(SPEEDSCOPE / "index.html", view=f"#localProfilePath={script}")
        page.wait_for("document.body.innerText.includes('Time (steady-state step 2) (1/5)')")
        assert page.evaluate("document.title") == "train.py on H100-SXM - speedscope"
        page.press("n")
        page.wait_for("document.body.innerText.includes('FLOPs (steady-state step 2) (2/5)')")


# Folded stacks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_folded_lines_sum_to_the_total(ledger: Ledger, quantity: str) -> None:
    lines = text_of(ledger, "folded", quantity).splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines]
    assert sum(int(amount) for _, amount in pairs) == stacks(ledger, quantity).total
    assert len({stack for stack, _ in pairs}) == len(pairs)


def test_time_is_what_is_told_where_nothing_is_named(ledger: Ledger) -> None:
    assert text_of(ledger, "folded") == text_of(ledger, "folded", "time")


# The picture -------------------------------------------------------------------------------------


def boxes(text: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text).findall(f"{SVG}g")


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_boxes_lie_within_the_box_below(ledger: Ledger, quantity: str) -> None:
    """Each as wide as its part; those beside each other do not overlap."""
    spans: dict[float, list[tuple[float, float]]] = {}
    for box in boxes(text_of(ledger, "flamegraph", quantity)):
        rect = box.find(f"{SVG}rect")
        assert rect is not None
        x, y, width = (float(rect.get(name, "")) for name in ("x", "y", "width"))
        assert width >= LEAST_WIDTH - 0.01
        spans.setdefault(y, []).append((x, x + width))
    rows = [sorted(spans[y]) for y in sorted(spans, reverse=True)]
    assert rows[0] == [(MARGIN, WIDTH - MARGIN)]
    for below, row in pairwise(rows):
        assert all(right <= left + 0.02 for (_, right), (left, _) in pairwise(row))
        for left, right in row:
            assert any(a - 0.02 <= left and right <= b + 0.02 for a, b in below)


def test_tooltips_have_the_whole_name_and_the_share(ledger: Ledger) -> None:
    titles = [box.findtext(f"{SVG}title") for box in boxes(text_of(ledger, "flamegraph", "flops"))]
    total = 2 * 2 * 512 * 1024 * 1024
    assert f"all\n{total / 1e9:.2f} GFLOPs, 100.0 % of all" in titles
    assert any(
        re.match(r"train.py:41  logits = self.lm_head\(x\)\n", title or "") for title in titles
    )
    assert any((title or "").endswith("GFLOPs, 50.0 % of all") for title in titles)


def test_repeated_modules_are_one_box_with_their_number() -> None:
    builder = TraceBuilder()
    for number in range(3):
        place = site(frame(), module=f"h.{number}", module_class="Block")
        builder.run(mm_call(8, 8, 8), [-1, -1], site=place)
    totals = stacks(account(builder.build()), "flops")
    (holder,) = tree(totals).inner.values()
    (box,) = holder.inner.values()
    assert (box.level.name, len(box.members), box.amount) == ("h.*: Block", 3, 3 * 1024)
    text = text_of(account(builder.build()), "flamegraph", "flops")
    assert "h.*: Block, 3 modules" in text


def test_a_step_without_any_of_it_says_so() -> None:
    text = text_of(account(TraceBuilder().build()), "flamegraph", "saved")
    assert "Nothing of it in this period." in text
    ElementTree.fromstring(text)


def test_the_picture_asks_for_nothing_and_runs_nothing(ledger: Ledger) -> None:
    text = text_of(ledger, "flamegraph")
    tags = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(text).iter()}
    assert tags == {"svg", "style", "title", "text", "rect", "g"}
    assert "url(" not in text
    assert "@import" not in text
