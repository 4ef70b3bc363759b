"""From which value on: the search by hand, and runs of a script."""

import json
from pathlib import Path

import pytest

from torchtally.cli import main
from torchtally.fit.search import Values
from torchtally.fit.threshold import Goal, StepPoint, ThresholdSearch
from torchtally.report.formats import render
from torchtally.report.report import Look
from torchtally.report.threshold import threshold_report

SCRIPT = """\
import sys
import torch
from torch import nn

batch = int(sys.argv[1].partition("=")[2])
first, second = (nn.Linear(4096, 4096, bias=False, dtype=torch.bfloat16) for _ in range(2))
model = nn.Sequential(first, second).cuda()
for _ in range(3):
    x = torch.randn(batch, 4096, device="cuda", dtype=torch.bfloat16)
    model(x).sum().backward()
    model.zero_grad()
"""


def searched(least: int, fails_at: int = 10**9, **how: int) -> ThresholdSearch:
    """A search over a script whose step is compute-bound from `least` on."""
    search = ThresholdSearch(Values(**how), Goal("step"))
    while (value := search.next_value()) is not None:
        assert value not in search.points
        search.learn(
            StepPoint(value, "out of memory")
            if value >= fails_at
            else StepPoint(value, step_s=1.0, compute_share=0.6 if value >= least else 0.4)
        )
    return search


@pytest.mark.parametrize("least", [1, 2, 3, 7, 8, 100, 1000])
def test_the_smallest_value_is_found_and_the_one_before_it_tried(least: int) -> None:
    search = searched(least, high=1000)
    assert search.answer == least
    assert search.below == (least - 1 or None)
    assert len(search.points) <= 20


def test_multiples_alone_are_tried() -> None:
    search = searched(100, low=8, high=4096, multiple=8)
    assert (search.answer, search.below) == (104, 96)
    assert all(value % 8 == 0 for value in search.points)


def test_values_that_fail_end_the_search() -> None:
    """50 needs more memory than there is: 40 is found below it, and 60 is not."""
    assert searched(40, fails_at=50).answer == 40
    search = searched(60, fails_at=50)
    assert (search.answer, search.below) == (None, 49)
    assert search.failed == StepPoint(50, "out of memory")


def test_none_in_the_range() -> None:
    search = searched(70, high=64)
    assert (search.answer, search.below, search.failed) == (None, 64, None)


def test_mfu_is_reached_and_half_is_more_than_half() -> None:
    assert Goal(mfu=0.4).is_met(StepPoint(1, mfu=0.4))
    assert not Goal(mfu=0.4).is_met(StepPoint(1, mfu=0.39))
    assert not Goal(mfu=0.4).is_met(StepPoint(1))
    assert not Goal("step").is_met(StepPoint(1, compute_share=0.5))


def test_the_report_says_it_in_a_sentence() -> None:
    text = render(threshold_report(searched(3), "--batch", "H100-SXM"), "text", Look())
    assert text.startswith("smallest --batch from which the step is compute-bound on H100-SXM: 3\n")
    assert "at 3 60.0 % of its time is; at 2 40.0 % of its time is." in text
    text = render(threshold_report(searched(60, fails_at=50), "--b", "T4"), "text", Look())
    assert "no --b up to 49 from which the step is compute-bound on T4" in text
    assert "50 fails: out of memory" in text
    text = render(threshold_report(searched(1, fails_at=1), "--b", "T4"), "text", Look())
    assert "the script fails at the smallest --b, 1: out of memory" in text


def test_products_of_4096_are_compute_bound_where_the_roofline_bends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A product of (B, 4096) by (4096, 4096) in bf16 does B * 4096 / (4096 + 2 * B) FLOPs a byte.
    989.4 TFLOP/s over 3.35 TB/s are 295, of which B = 345 has as many; rates that are reached bend
    it earlier, and tiles of 64 and 128 rows in steps.
    """
    (tmp_path / "mlp.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    asked = ["fit", "mlp.py", "--vary", "--batch={}", "--gpu", "H100-SXM", "--multiple-of", "32",
             "--quiet", "--format", "json"]  # fmt: skip
    assert main([*asked, "--compute-bound", "mlp.py:10"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "threshold/1"
    assert 128 < document["smallest"] <= 384
    assert document["below"] == document["smallest"] - 32
    shares = {point["value"]: point["compute_share"] for point in document["curve"]}
    assert shares[document["smallest"]] > 0.5 >= shares[document["below"]]
    mfus = [point["mfu"] for point in document["curve"]]
    assert mfus == sorted(mfus)
    assert main([*asked, "--mfu", "99%", "--to", "64"]) == 1
    assert json.loads(capsys.readouterr().out)["smallest"] is None


def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlp.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    asked = ["fit", "mlp.py", "--vary", "--batch={}", "--quiet", "--gpu", "H100-SXM"]
    for more, message in (
        (["--mfu", "40%", "--compute-bound", "step"], "two questions"),
        (["--mfu", "40%", "--gpu", "T4"], "are of one --gpu"),
        (["--compute-bound", "nowhere"], "no such line or module"),
    ):
        assert main([*asked, *more]) == 2
        assert message in capsys.readouterr().err
