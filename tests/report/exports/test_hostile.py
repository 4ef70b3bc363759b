"""No name, line or path breaks a file or gets out of its place."""

import json
import re
from xml.etree import ElementTree

import pytest

from tests.report.test_html import CORPUS
from tests.report.test_text import realistic
from torchtally.chips import chip
from torchtally.ledger import Ledger, account
from torchtally.report.exports import Wanted, export
from torchtally.timing.roofline import Roofline

TEXTS = (
    *CORPUS, "a;b c 5\nd 6", "\x00\x01\x1b[31m\x7f", "%s%n{0}$(x)`x`", "'\"\\",
    "\u202eabc\u2028\ufffe", "é\udcff", "=1+1", "", " ", "x" * 5000,
)  # fmt: skip
SVG = "{http://www.w3.org/2000/svg}"


def ledger_of(text: str) -> Ledger:
    return account(realistic(f"/a/{text}.py", text, text), roofline=Roofline(chip("H100-SXM")))


def written(text: str, name: str, quantity: str = "") -> str:
    content = export(ledger_of(text), name, Wanted(quantity)).parts[""]
    assert isinstance(content, str)
    return content


@pytest.mark.parametrize("text", TEXTS)
def test_json_stays_json(text: str) -> None:
    for name in ("speedscope", "perfetto"):
        document = written(text, name)
        assert json.loads(document)
        assert document.isascii()  # no lone surrogate, no U+2028


@pytest.mark.parametrize("text", TEXTS)
def test_the_picture_has_no_other_elements(text: str) -> None:
    for quantity in ("time", "memory"):
        root = ElementTree.fromstring(written(text, "flamegraph", quantity))
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert tags == {"svg", "style", "title", "text", "rect", "g"}
        attributes = {name for element in root.iter() for name in element.keys()}  # noqa: SIM118
        assert attributes <= {"viewBox", "width", "height", "role", "class", "x", "y", "rx"}


@pytest.mark.parametrize("text", TEXTS)
def test_a_stack_stays_one_line(text: str) -> None:
    lines = written(text, "folded", "flops").split("\n")
    assert lines.pop() == ""
    assert len(lines) == 2
    assert all(re.fullmatch(r"[^\n]+ \d+", line) for line in lines)
    depths = {line.count(";") for line in lines}
    expected = len(text.split(".")) if text else 1
    assert depths == {expected + 1}
