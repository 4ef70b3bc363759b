"""The brief answer: twelve lines, a kilobyte, and what changed."""

import json
from dataclasses import replace

import pytest
from msgspec import structs

from tests.builders import big_trace
from tests.report.test_text import HOSTILE, is_harmless, realistic
from tests.views.stopwatch import DATASHEET
from torchtally.brief.answer import BriefAnswer, brief_answer
from torchtally.brief.last_run import LastRun, figures_of
from torchtally.fit.changes import Change
from torchtally.fit.results import ChangeResult
from torchtally.gates.check import check
from torchtally.gates.limits import parse_limits
from torchtally.ledger import Ledger, account
from torchtally.report.brief import MOST_BYTES, MOST_LINES, brief_document, brief_report, brief_text
from torchtally.report.formats import render
from torchtally.report.keys import packed
from torchtally.report.report import Look
from torchtally.trace import Trace


def ledger_of(trace: Trace) -> Ledger:
    return account(trace, roofline=DATASHEET)


def last_of(ledger: Ledger, factor: float = 1.0) -> LastRun:
    """A run whose lines took so many times as long."""
    run = figures_of(ledger, 0.0)
    lines = tuple(structs.replace(line, seconds=line.seconds * factor) for line in run.lines)
    step_s = None if run.step_s is None else run.step_s * factor
    return structs.replace(run, lines=lines, step_s=step_s)


def full_answer(text: str = "", name: str = "h.0.mlp") -> BriefAnswer:
    """An answer that has all that one may have."""
    ledger = ledger_of(realistic(f"/a/{text[:200]}.py", text, name))
    change = Change(text or "half the batch", 1)
    return brief_answer(
        ledger,
        last=structs.replace(last_of(ledger, 2.0), command=text),
        changes=[ChangeResult(change, 10**9, 10**8, fits=True)] * 3,
        findings=check(ledger, parse_limits(["peak < 1B", "step < 0.001ms", "flops < 1"])),
    )


def test_the_first_lines_are_verdict_figures_and_the_dearest_line() -> None:
    ledger = ledger_of(realistic())
    first, figures, fitting, line, *_ = brief_text(brief_answer(ledger)).splitlines()
    assert first.startswith("fits H100-SXM: peak ")
    assert figures.startswith("step ")
    assert " to " in figures
    assert fitting.startswith("would fit: smallest GPU ")
    assert line.endswith("train.py:41  logits = self.lm_head(x)")


def test_what_is_not_certain_is_said() -> None:
    text = brief_text(brief_answer(ledger_of(realistic())))
    (doubts,) = (line for line in text.splitlines() if line.startswith("not certain: "))
    assert "the run ended early (exception)" in doubts
    assert "NOT counted" in doubts


def test_without_times_lines_are_ordered_by_flops() -> None:
    answer = brief_answer(account(big_trace(200)))
    flops = [line.total.flops for line in answer.lines]
    assert flops == sorted(flops, reverse=True)
    assert flops[0] > 0
    document = brief_document(answer)
    assert (document.step_s, document.mfu, document.thousand_steps_usd) == (None, None, None)


def test_a_run_like_the_last_one_changed_nothing() -> None:
    ledger = ledger_of(big_trace(200))
    answer = brief_answer(ledger, last=last_of(ledger))
    assert answer.since is not None
    assert (answer.since.changed, answer.since.lines) == (0, ())
    assert brief_text(answer).splitlines()[-1] == "since the last run: nothing changed"


def test_what_changed_is_said_by_line() -> None:
    """Every line took twice as long before."""
    ledger = ledger_of(big_trace(200))
    answer = brief_answer(ledger, last=last_of(ledger, 2.0))
    assert answer.since is not None
    assert answer.since.step_change_s == pytest.approx(-(ledger.step_s or 0.0))
    largest = answer.since.lines[0]
    assert largest.seconds_change == pytest.approx(-answer.lines[0].total.seconds)
    document = brief_document(answer)
    assert document.since_last is not None
    assert document.since_last.changed_lines == answer.since.changed > 0


def test_changes_that_fit_come_before_chips() -> None:
    smaller = ChangeResult(Change("smaller", 3), 10**9, 10**8, fits=True)
    setting = ChangeResult(Change("setting", 0), 10**9, 10**8, fits=True)
    useless = ChangeResult(Change("useless", 0), 10**9, 0, fits=False)
    answer = brief_answer(ledger_of(realistic()), changes=[smaller, useless, setting])
    assert [each.change.text for each in answer.changes] == ["setting", "smaller"]
    assert "would fit: setting (peak 953.67 MiB); smaller" in brief_text(answer)


@pytest.mark.parametrize("text", [*HOSTILE, "é" * 3000, '"\\' * 500])
def test_any_run_is_told_in_twelve_lines_and_a_kilobyte(text: str) -> None:
    answer = full_answer(text, text)
    shown = brief_text(answer)
    assert shown.count("\n") <= MOST_LINES
    assert is_harmless(shown)
    document = packed(brief_document(answer))
    assert len(document) <= MOST_BYTES
    assert json.loads(document)["schema"] == "brief/1"
    assert render(brief_report(answer), "json", Look()) == document


def test_more_than_a_kilobyte_is_found() -> None:
    """The whole texts would not fit: they were cut, not left as they are."""
    answer = full_answer("x" * 1000)
    document = brief_document(answer)
    assert len(document.doubts[0]) < len("the run ended early (exception): ") + 1000
    whole = structs.replace(document, doubts=["x" * 1000])
    assert len(packed(whole)) > MOST_BYTES


def test_an_answer_without_a_device_has_a_verdict() -> None:
    answer = brief_answer(ledger_of(big_trace(10)))
    bare = replace(answer, lines=(), smallest_chip=None)
    assert brief_text(bare)
