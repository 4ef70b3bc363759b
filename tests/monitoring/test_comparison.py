"""Medians and peaks beside a prediction: what parts, once, and in which words."""

import pytest

from torchtally.monitoring.causes import SEEN, USUAL, likely_causes
from torchtally.monitoring.comparison import MonitoredSteps, Parting, values_of
from torchtally.monitoring.prediction import StepPrediction
from torchtally.monitoring.stopwatch import MeasuredMemory
from torchtally.monitoring.wording import beside, warning
from torchtally.watch.expectation import ExpectedStep

MIB = 2**20
STEP = ExpectedStep(
    file="run.tally", chip="H100-SXM", step_s=0.1, mfu=0.4, peak_bytes=100 * MIB,
    reserved_bytes=120 * MIB,
)  # fmt: skip


def comparison(time_error: float = 0.2, memory_error: float = 0.05) -> MonitoredSteps:
    return MonitoredSteps(
        prediction=StepPrediction(step=STEP, time_error=time_error, memory_error=memory_error)
    )


def memory(mib: int) -> MeasuredMemory:
    return MeasuredMemory(mib * MIB, 120 * MIB)


def partings(of: MonitoredSteps, *steps_s: float, mib: int = 100) -> list[Parting]:
    for step_s in steps_s:
        of.time(step_s)
    return [kind for kind, _ in of.partings(memory(mib))]


def test_within_the_error_of_the_prediction_nothing_parts() -> None:
    assert partings(comparison(), 0.119, 0.081, 0.119, mib=104) == []


@pytest.mark.parametrize(
    ("step_s", "mib", "kind"),
    [
        (0.121, 100, Parting.SLOWER),
        (0.079, 100, Parting.FASTER),
        (0.1, 106, Parting.MORE_MEMORY),
        (0.1, 94, Parting.LESS_MEMORY),
    ],
)
def test_each_kind_is_told_once(step_s: float, mib: int, kind: Parting) -> None:
    of = comparison()
    assert partings(of, *[step_s] * 3, mib=mib) == [kind]
    assert partings(of, *[step_s] * 3, mib=mib) == []


def test_one_slow_step_is_no_parting() -> None:
    """The median of 0.1, 5.0 and 0.1 s is 0.1 s."""
    assert partings(comparison(), 0.1, 5.0, 0.1) == []


def test_two_steps_are_too_few() -> None:
    assert partings(comparison(), 5.0, 5.0) == []


def test_without_a_prediction_nothing_parts() -> None:
    assert partings(MonitoredSteps(), 0.1, 0.1, 0.1) == []


def test_of_another_chip_memory_alone_parts() -> None:
    of = comparison()
    of.is_same_chip = False
    assert partings(of, 9.0, 9.0, 9.0, mib=200) == [Parting.MORE_MEMORY]
    assert of.recent(memory(200)).mfu is None


def test_a_tolerance_stands_for_both_errors() -> None:
    prediction = StepPrediction(step=STEP, time_error=0.2).within(0.5)
    assert (prediction.time_error, prediction.memory_error) == (0.5, 0.5)
    assert StepPrediction(step=STEP, time_error=0.2).within(None).time_error == 0.2


def test_values_stand_side_by_side() -> None:
    """Twice as long as predicted: half of the MFU."""
    of = comparison()
    for step_s in (0.1, 0.2, 0.3):
        of.time(step_s)
    assert values_of(of.since_log(memory(110))) == pytest.approx(
        {
            "tally/step_s": 0.2, "tally/step_s_predicted": 0.1, "tally/step_parted": 1.0,
            "tally/mfu_percent": 20.0, "tally/mfu_percent_predicted": 40.0,
            "tally/peak_bytes": 110 * MIB, "tally/peak_bytes_predicted": 100 * MIB,
            "tally/peak_parted": 0.1,
            "tally/reserved_bytes": 120 * MIB, "tally/reserved_bytes_predicted": 120 * MIB,
        }
    )  # fmt: skip
    assert "tally/step_s" not in values_of(of.since_log(memory(110)))  # none since


def test_unknown_values_are_left_out() -> None:
    of = MonitoredSteps()
    of.time(0.1)
    assert values_of(of.since_log(MeasuredMemory())) == {"tally/step_s": 0.1}


def test_sentences() -> None:
    of = comparison()
    for _ in range(3):
        of.time(0.13)
    compared = of.recent(memory(110))
    assert beside(compared) == (
        "step 130.0 ms, predicted 100.0 ms (+30.0 %); MFU 30.8 %, predicted 40.0 %; "
        "peak memory 110.00 MiB, predicted 100.00 MiB (+10.0 %)"
    )
    text = warning(Parting.SLOWER, compared, None)
    assert text.startswith("warning: steps take longer than predicted, by more than 20.0 %: step")
    assert "Likely causes: steps that wait for data;" in text
    assert beside(MonitoredSteps().recent(MeasuredMemory())) == "peak memory not measured"


def test_causes_that_the_process_shows_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert likely_causes(Parting.SLOWER, None) == list(USUAL[Parting.SLOWER])
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert likely_causes(Parting.SLOWER, None)[0] == "CUDA_LAUNCH_BLOCKING is set"
    assert set(SEEN) == set(USUAL) == set(Parting)
