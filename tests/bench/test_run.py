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
    found = bench_of_small_operators(lambda name, done: stages.append((name, done)))
    return found, stages


def test_every_operator_took_its_time(measured):
    found, _ = measured
    assert len(found.samples) > 100
    assert all(0 < sample.seconds < 1 for sample in found.samples)
    kinds = {cost_of(sample.call)[0] for sample in found.samples}
    assert {Kind.PRODUCT, Kind.ATTENTION, Kind.ELEMENTWISE, Kind.NORMALIZATION} <= kinds
    assert Kind.UNCOUNTED not in kinds


def test_the_machine_is_named(measured):
    found, _ = measured
    assert found.device
    assert found.kind == "cpu"
    assert found.threads == torch.get_num_threads()
    assert found.torch_version == torch.__version__
    assert found.conditions["cpu_capability"]


def test_rates_are_a_machines(measured):
    found, _ = measured
    assert 1e8 < found.peak_flop_per_s["float32"] < 1e14
    assert 1e8 < found.bandwidth_bytes_per_s < 1e13
    for seconds in (found.issue.forward_s, found.issue.backward_s, found.issue.optimizer_s):
        assert 0 <= seconds < 1e-2
    assert found.issue.launch_s == 0


def test_the_best_rate_is_one_of_the_measured(measured):
    found, _ = measured
    rates = [cost_of(sample.call)[1].flops / sample.seconds for sample in found.samples
             if cost_of(sample.call)[0].is_matmul]  # fmt: skip
    assert found.peak_flop_per_s["float32"] == max(rates)


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
