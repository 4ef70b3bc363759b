"""The badge: what a step needs and takes, in one line of a README."""

from xml.etree import ElementTree

import pytest

from tests.report.exports.test_hostile import SVG, TEXTS
from tests.report.test_text import realistic
from torchtally.chips import chip
from torchtally.ledger import Ledger, account
from torchtally.report.exports import export
from torchtally.report.exports.badge import UNKNOWN, badge_texts
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace
from torchtally.units import roughly, roughly_bytes


def ledger_of(trace: Trace, *, is_timed: bool = True) -> Ledger:
    return account(trace, roofline=Roofline(chip("H100-SXM")) if is_timed else None)


def test_peak_time_and_gpu() -> None:
    ledger = ledger_of(realistic())
    texts = badge_texts(ledger)
    peak, time = roughly_bytes(ledger.memory.peak_bytes), roughly(ledger.step_s or 0.0)
    assert texts.shown.startswith(f"peak {peak} · ")
    assert texts.shown.endswith(f"{time} on H100-SXM")
    assert "predicted" in texts.described
    assert texts.colour == "#2da44e"


def test_what_is_unknown_is_left_out() -> None:
    texts = badge_texts(ledger_of(realistic(), is_timed=False))
    assert " · " not in texts.shown
    assert texts.shown.endswith(" on H100-SXM")


def test_a_run_without_the_gpu_says_so() -> None:
    from tests.builders import TraceBuilder

    texts = badge_texts(ledger_of(TraceBuilder().build()))
    assert texts.shown.startswith("nothing was allocated on ")
    assert texts.colour == UNKNOWN


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1023, "1023 B"),
        (12_552_042_000, "11.7 GiB"),
        (1020 * 2**20, "1020 MiB"),
    ],
)
def test_bytes_have_three_digits(size_bytes: int, text: str) -> None:
    assert roughly_bytes(size_bytes) == text


@pytest.mark.parametrize("text", TEXTS)
def test_the_picture_is_a_picture_alone(text: str) -> None:
    ledger = ledger_of(realistic(f"/a/{text}.py", text, text))
    content = export(ledger, "badge").parts[""]
    assert isinstance(content, str)
    root = ElementTree.fromstring(content)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags == {"svg", "title", "rect", "g", "text"}
