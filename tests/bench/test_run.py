"""The bench on the machine the tests run on: real operators, small ones."""

import pytest
import torch

from tests.bench.small import bench_of_small_operators
from torchtally.bench import run
from torchtally.bench.work import work
from torchtally.errors import UsageError
from torchtally.work import Kind, cost_of


@pytest.fixture(scope="module")
def measured():
    stages = []
    calibration = bench_of_small_operators(lambda name, done: stages.append((name, done)))
    return calibration, stages


def test_every_operator_took_its_time(measured):
    calibration, _ = measured
    assert len(calibration.samples) > 100
    assert all(0 < sample.seconds < 1 for sample in calibration.samples)
    kinds = {cost_of(sample.call)[0] for sample in calibration.samples}
    assert {Kind.PRODUCT, Kind.ATTENTION, Kind.ELEMENTWISE, Kind.NORMALIZATION} <= kinds
    assert Kind.UNCOUNTED not in kinds


def test_the_machine_is_named(measured):
    calibration, _ = measured
    assert calibration.device
    assert calibration.kind == "cpu"
    assert calibration.threads == torch.get_num_threads()
    assert calibration.torch_version == torch.__version__
    assert calibration.conditions["cpu_capability"]


def test_rates_are_a_machines(measured):
    calibration, _ = measured
    assert 1e8 < calibration.peak_flop_per_s["float32"] < 1e14
    assert 1e8 < calibration.bandwidth_bytes_per_s < 1e13
    for seconds in (
        calibration.issue.forward_s,
        calibration.issue.backward_s,
        calibration.issue.optimizer_s,
    ):
        assert 0 <= seconds < 1e-2
    assert calibration.issue.launch_s == 0


def test_the_best_rate_is_one_of_the_measured(measured):
    calibration, _ = measured
    rates = [cost_of(sample.call)[1].flops / sample.seconds for sample in calibration.samples
             if cost_of(sample.call)[0].is_matmul]  # fmt: skip
    assert calibration.peak_flop_per_s["float32"] == max(rates)


def test_progress_only_grows(measured):
    _, stages = measured
    shares = [done for _, done in stages]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] < 1


def test_work_is_recorded_as_the_tracer_would():
    """A (2, 3) by a transposed (5, 3): 60 FLOPs, 31 numbers moved."""
    left, right = torch.ones(2, 3), torch.ones(5, 3).t()
    call = work(torch.ops.aten.mm.default, left, right).call()
    assert call.name == "aten.mm"
    assert [spec.stride for spec in call.inputs] == [(3, 1), (1, 3)]
    kind, cost = cost_of(call)
    assert (kind, cost.flops, cost.bytes) == (Kind.PRODUCT, 60, 4 * (6 + 15 + 10))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(UsageError, match="--device cpu"):
        run.bench("cuda", is_quick=False, report=lambda name, done: None)
