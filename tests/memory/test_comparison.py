"""Two measurements in, a verdict out."""

from dataclasses import replace

import pytest

from torchtally.memory.comparison import AuditVerdict, Comparison, Pair
from torchtally.trace.measurement import (
    Held,
    MeasuredLine,
    MeasuredStep,
    Measurement,
    failed_measurement,
)

GIB = 1 << 30
OOM = "torch.OutOfMemoryError: CUDA out of memory."


def measurement(allocated: int = 10 * GIB, reserved: int = 20 * GIB) -> Measurement:
    """Of a run that went well; half of the peak is parameters."""
    held = {"parameters": allocated // 2, "gradients": 0, "optimizer_state": 0,
            "rest": allocated - allocated // 2}  # fmt: skip
    return Measurement(
        device="NVIDIA H100 80GB HBM3",
        total_memory_bytes=80 * GIB,
        torch="2.13.0",
        ending="steps",
        message="",
        exit_code=0,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_step=1,
        steps=(MeasuredStep(allocated, reserved, allocated, reserved),),
        held=held,
        lines=(MeasuredLine("/home/me/train.py", 7, "y = f(x)", allocated - GIB),),
    )


def compared(measured: Measurement, predicted: Measurement) -> Comparison:
    return Comparison(measured, predicted, tolerance=0.01, reserved_tolerance=0.05)


def out_of_memory(measurement: Measurement) -> Measurement:
    return replace(measurement, ending="exception", message=OOM, exit_code=1)


def test_the_same_is_within() -> None:
    comparison = compared(measurement(), measurement())
    assert (comparison.verdict, comparison.disagreements, comparison.failure) == (
        AuditVerdict.WITHIN,
        (),
        "",
    )
    assert comparison.verdict.value == 0


@pytest.mark.parametrize(
    ("allocated", "reserved", "verdict"),
    [
        (10100, 20000, AuditVerdict.WITHIN),  # 1 % of 10000 are 100
        (10101, 20000, AuditVerdict.OUTSIDE),
        (9900, 20000, AuditVerdict.WITHIN),
        (9899, 20000, AuditVerdict.OUTSIDE),
        (10000, 21000, AuditVerdict.WITHIN),  # 5 % of 20000 are 1000
        (10000, 21001, AuditVerdict.OUTSIDE),
        (10000, 18999, AuditVerdict.OUTSIDE),
    ],
)
def test_the_limits_of_the_tolerances(allocated: int, reserved: int, verdict: AuditVerdict) -> None:
    comparison = compared(measurement(10000, 20000), measurement(allocated, reserved))
    assert comparison.verdict is verdict
    assert bool(comparison.disagreements) == (verdict is AuditVerdict.OUTSIDE)


def test_out_of_memory_on_one_side_alone_is_outside() -> None:
    ours, theirs = measurement(), measurement()
    assert compared(out_of_memory(ours), theirs).disagreements == (
        "it ran out of memory on the GPU alone",
    )
    assert compared(ours, out_of_memory(theirs)).disagreements == (
        "it ran out of memory on the simulated GPU alone",
    )
    both = compared(out_of_memory(ours), out_of_memory(theirs))
    assert (both.failure, both.verdict) == ("", AuditVerdict.WITHIN)


def test_another_number_of_steps_is_outside() -> None:
    comparison = compared(measurement(), replace(measurement(), steps=()))
    assert comparison.verdict is AuditVerdict.OUTSIDE
    assert comparison.disagreements == ("training steps: 1 on the GPU, 0 simulated",)


def test_a_script_that_fails_is_no_comparison() -> None:
    failed = replace(measurement(), ending="exception", message="ValueError: x", exit_code=1)
    skipped = failed_measurement("not run", "the script failed on the GPU")
    assert compared(failed, skipped).failure == "On the GPU: ValueError: x"
    comparison = compared(measurement(), failed)
    assert comparison.failure == "On the simulated GPU, and not on the real one: ValueError: x"
    assert (comparison.verdict, comparison.verdict.value) == (AuditVerdict.FAILED, 2)
    left = replace(measurement(), ending="exit", message="sys.exit(3)", exit_code=3)
    assert compared(left, skipped).failure == "On the GPU: sys.exit(3)"


def test_nothing_on_the_gpu_is_no_comparison() -> None:
    empty = measurement(0, 0)
    assert compared(empty, empty).failure == "It put nothing on the GPU."


def test_lines_of_either_run_stand_beside_each_other() -> None:
    ours = replace(
        measurement(), lines=(MeasuredLine("a.py", 1, "x", 100), MeasuredLine("a.py", 2, "y", 50))
    )
    theirs = replace(
        measurement(), lines=(MeasuredLine("a.py", 3, "z", 70), MeasuredLine("a.py", 1, "x", 90))
    )
    pairs = {line.line: pair for line, pair in compared(ours, theirs).lines}
    assert pairs == {1: Pair(100, 90), 3: Pair(0, 70), 2: Pair(50, 0)}
    assert list(pairs) == [1, 3, 2]


def test_what_no_line_explains_is_left_over() -> None:
    assert compared(measurement(), measurement()).unexplained == Pair(GIB, GIB)


def test_categories_sum_to_the_peak() -> None:
    comparison = compared(measurement(), measurement(8 * GIB))
    assert dict(comparison.held)[Held.PARAMETERS] == Pair(5 * GIB, 4 * GIB)
    assert sum(pair.measured_bytes for _, pair in comparison.held) == 10 * GIB


def test_a_ratio_of_nothing_is_none() -> None:
    assert Pair(0, 5).ratio is None
    assert Pair(4, 5).ratio == 1.25
    assert not Pair(0, 5).is_within(0.5)


def test_a_measurement_survives_json_and_another_format_is_refused() -> None:
    reading = measurement()
    assert Measurement.from_json(reading.to_json()) == reading
    with pytest.raises(ValueError, match="format 1, got 2"):
        Measurement.from_json({**reading.to_json(), "format": 2})
