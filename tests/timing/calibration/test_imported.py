"""Calibrations from profilers' traces, and those that came with the package."""

from pathlib import Path

import pytest

from tests.profiles.kineto_files import linear_step
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.runs.explaining import explain
from torchtally.timing.calibration.imported import calibration_from, import_samples
from torchtally.timing.calibration.library import SHIPPED, files, of_chip
from torchtally.timing.hosts import ESTIMATED_ISSUE
from torchtally.timing.roofline import Roofline
from torchtally.trace import Call, Trace
from torchtally.work import cost_of


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder: Path = tmp_path_factory.mktemp("imported")
    return explain(str(linear_step().write(folder / "step.json")))


def test_a_sample_is_the_median_of_a_call(trace: Trace) -> None:
    samples = import_samples([trace, trace])
    seconds = {sample.call.name: sample.seconds for sample in samples.samples}
    assert seconds == {"aten.mm": pytest.approx(200e-6), "aten.mul_": pytest.approx(10e-6)}
    assert samples.peak_flop_per_s == {"bfloat16": pytest.approx(2 * 4096**3 / 200e-6)}
    assert samples.bandwidth_bytes_per_s == pytest.approx(4 * 4096**2 / 10e-6)


def test_a_call_that_was_measured_is_predicted_as_measured_and_far_ones_as_before(
    trace: Trace,
) -> None:
    target = chip("H100-SXM")
    calibration = calibration_from(
        [trace], target, date="2026-11-23", issue=ESTIMATED_ISSUE, before=None
    )
    plain, better = Roofline(target), Roofline(target, calibration)
    (product,) = (sample.call for sample in calibration.samples if sample.call.name == "aten.mm")
    assert better.kernel(product, *cost_of(product)).seconds == pytest.approx(200e-6)
    small = explained_product(256)
    assert better.kernel(small, *cost_of(small)).seconds == pytest.approx(
        plain.kernel(small, *cost_of(small)).seconds, rel=0.03
    )


def explained_product(size: int) -> Call:
    from tests.builders import mm_call

    return mm_call(size, size, size)


def test_what_was_measured_by_itself_stays(trace: Trace) -> None:
    target = chip("H100-SXM")
    first = calibration_from([trace], target, date="x", issue=ESTIMATED_ISSUE, before=None)
    again = calibration_from([trace], target, date="y", issue=ESTIMATED_ISSUE, before=first)
    assert again.samples == first.samples
    assert "imported" in again.conditions


def test_a_trace_without_shapes_teaches_nothing(tmp_path: Path) -> None:
    maker = linear_step()
    for event in maker.events:
        event["args"].pop("Input Dims", None)
    trace = explain(str(maker.write(tmp_path / "bare.json")))
    with pytest.raises(UsageError, match="nothing to learn from"):
        calibration_from([trace], chip("H100-SXM"), date="x", issue=ESTIMATED_ISSUE, before=None)


def test_the_shipped_one_of_a_gpu_names_its_source_and_license(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLY_CALIBRATIONS", str(tmp_path))
    shipped = of_chip(chip("MI300X"))
    assert shipped is not None
    assert any(path.name == "amd-instinct-mi300x.json" for path in files(SHIPPED))
    assert "MIT License" in shipped.conditions["source"]
    assert shipped.reach > 0
    assert len(shipped.samples) == 107
