"""Medians and peaks against a prediction: what deviates, once, and in which words."""

from dataclasses import replace

import pytest

from torchtally.live.causes import CAUSES, advice, likely_causes
from torchtally.live.comparison import Deviation, TimedSteps, values_of
from torchtally.live.prediction import UNPREDICTED, PredictedStep
from torchtally.live.sentences import comparison_text, warning

MIB = 2**20
STEP = PredictedStep(
    file="run.tally", chip="H100-SXM", step_s=0.1, mfu=0.4, peak_bytes=100 * MIB,
    reserved_bytes=120 * MIB,
)  # fmt: skip


def timed(time_error: float = 0.2, memory_error: float = 0.05) -> TimedSteps:
    return TimedSteps(replace(STEP, time_error=time_error, memory_error=memory_error))


def deviations(of: TimedSteps, *steps_s: float, mib: int = 100) -> list[Deviation]:
    for step_s in steps_s:
        of.add(step_s)
    of.peak_bytes, of.reserved_bytes = mib * MIB, 120 * MIB
    return list(of.new_deviations(of.recent()))


def test_within_the_error_of_the_prediction_nothing_deviates() -> None:
    assert deviations(timed(), 0.119, 0.081, 0.119, mib=104) == []


@pytest.mark.parametrize(
    ("step_s", "mib", "kind"),
    [
        (0.121, 100, Deviation.SLOWER),
        (0.079, 100, Deviation.FASTER),
        (0.1, 106, Deviation.MORE_MEMORY),
        (0.1, 94, Deviation.LESS_MEMORY),
    ],
)
def test_each_kind_is_told_once(step_s: float, mib: int, kind: Deviation) -> None:
    of = timed()
    assert deviations(of, *[step_s] * 3, mib=mib) == [kind]
    assert deviations(of, *[step_s] * 3, mib=mib) == []


def test_one_slow_step_is_no_deviation() -> None:
    """The median of 0.1, 5.0 and 0.1 s is 0.1 s."""
    assert deviations(timed(), 0.1, 5.0, 0.1) == []


def test_two_steps_are_too_few() -> None:
    assert deviations(timed(), 5.0, 5.0) == []


def test_without_a_prediction_nothing_deviates() -> None:
    assert deviations(TimedSteps(UNPREDICTED), 0.1, 0.1, 0.1) == []


def test_of_another_chip_memory_alone_deviates() -> None:
    of = timed()
    of.is_same_chip = False
    assert deviations(of, 9.0, 9.0, 9.0, mib=200) == [Deviation.MORE_MEMORY]
    assert of.recent().mfu is None


def test_a_tolerance_stands_for_both_errors() -> None:
    within = STEP.within(0.5)
    assert (within.time_error, within.memory_error) == (0.5, 0.5)
    assert STEP.within(None) == STEP


def test_values_stand_side_by_side() -> None:
    """Twice as long as predicted: half of the MFU."""
    of = timed()
    for step_s in (0.1, 0.2, 0.3):
        of.add(step_s)
    of.peak_bytes, of.reserved_bytes = 110 * MIB, 120 * MIB
    assert values_of(of.compare(of.median_s)) == pytest.approx(
        {
            "tally/step_s": 0.2, "tally/step_s_predicted": 0.1, "tally/step_deviation": 1.0,
            "tally/mfu_percent": 20.0, "tally/mfu_percent_predicted": 40.0,
            "tally/peak_bytes": 110 * MIB, "tally/peak_bytes_predicted": 100 * MIB,
            "tally/peak_deviation": 0.1,
            "tally/reserved_bytes": 120 * MIB, "tally/reserved_bytes_predicted": 120 * MIB,
        }
    )  # fmt: skip
    of.steps_s.clear()
    assert "tally/step_s" not in values_of(of.compare(of.median_s))  # none since


def test_unknown_values_are_left_out() -> None:
    of = TimedSteps()
    of.add(0.1)
    assert values_of(of.compare(of.median_s)) == {"tally/step_s": 0.1}


def test_sentences() -> None:
    of = timed()
    for _ in range(3):
        of.add(0.13)
    of.peak_bytes = 110 * MIB
    recent = of.recent()
    text = comparison_text(recent)
    assert text == (
        "step 130.0 ms, predicted 100.0 ms (+30.0 %); MFU 30.8 %, predicted 40.0 %; "
        "peak memory 110.00 MiB, predicted 100.00 MiB (+10.0 %)"
    )
    assert warning(Deviation.SLOWER, recent, text) == (
        f"warning: steps take longer than predicted, by more than 20.0 %: {text}"
    )
    assert advice(Deviation.SLOWER, None).startswith("  Likely causes: steps that wait for data;")
    assert comparison_text(TimedSteps().recent()) == "peak memory not measured"


def test_causes_that_the_process_shows_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert likely_causes(Deviation.SLOWER, None)[0] == "steps that wait for data"
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert likely_causes(Deviation.SLOWER, None)[0] == "CUDA_LAUNCH_BLOCKING is set"
    assert set(CAUSES) == set(Deviation)
