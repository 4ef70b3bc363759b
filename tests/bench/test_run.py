"""The bench on the machine the tests run on: real operators, small ones."""

import itertools

import pytest
import torch
from msgspec import structs

from tests.bench.small import bench_of_small_operators
from tests.builders import mm_call
from torchtally.bench import attention, convolutions, issuing, memory, operators, products, run
from torchtally.bench.stopwatch import Stopwatch, Work
from torchtally.bench.work import work
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.timing.calibration import Calibration, Issue, Sample, library
from torchtally.work import Kind, cost_of


@pytest.fixture(scope="module")
def measured():
    stages = []
    calibration = bench_of_small_operators(lambda name, done: stages.append((name, done)))
    return calibration, stages


@pytest.mark.thorough
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


class After:
    """Ctrl-C during some measurement: a stopwatch that is interrupted then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, measurements: int) -> None:
        self.left = measurements
        seconds = Stopwatch.seconds

        def interrupted(stopwatch: Stopwatch, work: Work) -> float:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return seconds(stopwatch, work)

        monkeypatch.setattr(Stopwatch, "seconds", interrupted)


@pytest.fixture
def products_alone(monkeypatch, tmp_path):
    """Two dtypes' smallest products, and neither large memory nor the host's issue rate."""
    monkeypatch.setenv(library.PLACE, str(tmp_path))
    monkeypatch.setitem(memory.LARGE_BYTES, "cpu", 2**12)
    monkeypatch.setattr(memory, "FRESH_BYTES", 2**12)
    monkeypatch.setattr(run, "_issue", lambda *_: Issue(1e-6, 1e-6, 1e-6, 1e-6, 0.0))
    monkeypatch.setattr(operators, "OPERATORS", ())
    monkeypatch.setattr(operators, "ON_LISTS", ())
    work = run.Effort((torch.float32, torch.bfloat16), 2e5, 0.0, 0, 0, seconds_each=1e-4)
    monkeypatch.setattr(run, "effort", lambda device, is_quick: work)

    def bench(*, is_resumed: bool = False) -> Calibration:
        told = lambda name, done: None  # noqa: E731
        return run.bench(
            "cpu", is_quick=False, report=told, keep=library.keep, is_resumed=is_resumed
        )

    return bench


def test_what_was_measured_before_an_interrupt_is_kept_and_not_measured_again(
    products_alone, monkeypatch, tmp_path
):
    """In the middle of a stage and, later, of the one that was resumed."""
    whole = products_alone()
    kept = []
    for measurements in (7, 3):  # of the first, four are of memory
        with monkeypatch.context() as patch:
            After(patch, measurements)
            with pytest.raises(KeyboardInterrupt):
                products_alone(is_resumed=bool(kept))
        kept.append(library.partial_of(whole.device, whole.threads))
    assert not library.files(tmp_path)
    first, second = ([*before.samples] for before in kept)
    assert (len(first), len(second)) == (3, 6)
    assert second[:3] == first
    assert kept[0].missing == kept[1].missing
    assert kept[0].missing[0] == "products float32"
    assert kept[0].missing[-1] == run.ISSUING
    resumed = products_alone(is_resumed=True)
    assert [sample.call for sample in resumed.samples] == [sample.call for sample in whole.samples]
    assert [*resumed.samples[:6]] == second
    assert not resumed.missing
    library.keep(resumed)
    assert library.partial_of(whole.device, whole.threads) is None
    assert len(library.files(tmp_path)) == 1
    with pytest.raises(UsageError, match="No interrupted measurement"):
        products_alone(is_resumed=True)


def test_an_interrupted_measurement_by_another_torch_is_not_resumed(products_alone):
    whole = products_alone()
    library.keep(structs.replace(whole, torch_version="1.0", missing=(run.ISSUING,)))
    with pytest.raises(UsageError, match=r"torch 1\.0"):
        products_alone(is_resumed=True)


def test_a_gpu_is_measured_in_about_a_minute():
    """By its budgets, of which most measurements take half."""
    gpu = torch.device("cuda")
    work = run.effort(gpu, is_quick=False)
    count = 0
    for dtype in work.dtypes:
        limits = (work.most_flops, work.least_flops)
        count += len([*products.products(gpu, dtype, *limits)])
        count += len([*attention.attention(gpu, dtype, work.most_flops)])
        count += len([*convolutions.convolutions(gpu, dtype, *limits)])
        count += len(operators.SIZES) * len((*operators.OPERATORS, *operators.ON_LISTS))
    assert count * work.seconds_each < 60


@pytest.mark.thorough
def test_what_a_tensor_of_a_list_takes():
    """A clock that ticks when asked: an optimizer takes one second. Its 8 operators take 0.05 each
    by themselves, so 0.6 are left for lists of 43 tensors, and of 19.
    """
    ticks = itertools.count()
    each_s = issuing.listed_s(
        torch.device("cpu"), chip(run.SHOWN_ON), lambda: float(next(ticks)), operator_s=0.05
    )
    assert each_s == pytest.approx((0.6 / (8 * 43) + 0.6 / (8 * 19)) / 2)


def test_the_best_rate_in_tf32_is_none_of_float32():
    plain, tf32 = mm_call(8, 8, 8), mm_call(8, 8, 8, allow_tf32=True)
    rates = run.best_rates([Sample(plain, 1024e-9), Sample(tf32, 512e-9)])
    assert rates == {"float32": pytest.approx(1e9), "tf32": pytest.approx(2e9)}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(UsageError, match="--device cpu"):
        run.bench("cuda", is_quick=False, report=lambda name, done: None)
