"""`tally bench`: everything that is measured of one device, in minutes."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from msgspec import structs

from torchtally.bench import (
    attention,
    convolutions,
    copies,
    machine,
    memory,
    operators,
    products,
    recurrent,
)
from torchtally.bench.issuing import issuing
from torchtally.bench.stopwatch import Stopwatch
from torchtally.bench.work import Ladder, Plan, climb
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.timing.calibration import Calibration, Issue, Sample
from torchtally.timing.calibration.features import is_tf32
from torchtally.timing.calibration.library import partial_of
from torchtally.timing.roofline.calibrated import Corrections
from torchtally.timing.roofline.host import host_kernel
from torchtally.timing.roofline.kernel import Kernel
from torchtally.timing.targets import host_chip
from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of

Said = Callable[[str, float], None]
"""Told what is being measured, and what share of the whole is done."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    dtypes: tuple[torch.dtype, ...]
    most_flops: float
    """Of one product, convolution or attention."""
    least_flops: float
    most_elements: int
    cold_bytes: int
    """Tensors that streaming operators take turns on, so that caches hold none of them."""
    seconds_each: float = 0.02
    """For one measurement."""


def effort(device: torch.device, *, is_quick: bool) -> Effort:
    """What fits in minutes: a GPU does in a millisecond what a CPU does in a second."""
    if device.type == "cuda":
        dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32, torch.float16)
        effort = Effort(dtypes, 3e12, 1e8, 2**28, 2**28)
    else:
        dtypes = (torch.float32, torch.bfloat16)
        effort = Effort(dtypes, 4e9, 0.0, 2**25, 80 * 2**20)
    if is_quick:
        return replace(
            effort,
            dtypes=dtypes[:1],
            most_flops=effort.most_flops / 10,
            most_elements=2**20,
            seconds_each=0.005,
        )
    return effort


SECOND_SHARE = 0.1
"""Of the first dtype's largest product: how large those of the others get. Most of what is computed
in them is not different, and a CPU without a unit for bfloat16 takes ten times as long."""


ISSUING = "issuing"
"""The name of what is measured last."""
SHAPES, QUICK, ALL = "shapes", "quick", "all"
"""A condition, and which shapes were measured."""


def bench(
    device: str,
    *,
    is_quick: bool,
    report: Said,
    keep: Callable[[Calibration], object] = lambda partial: None,
    is_resumed: bool = False,
) -> Calibration:
    """Measure the machine's "cuda" or "cpu", or what an interrupted measurement of it lacks.

    After each stage, and when it is interrupted, `keep` is given what has been measured so far.
    Raises UsageError where there is no such device, or nothing to resume.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("There is no GPU here that torch can use.\nMeasure the CPU: --device cpu.")
    begun = interrupted_on(place) if is_resumed else None
    if begun is not None:
        is_quick = begun.conditions[SHAPES] == QUICK
    work = effort(place, is_quick=is_quick)
    stopwatch = Stopwatch(place, work.seconds_each)
    if begun is None:
        report("memory", 0.0)
        begun = begin(place, stopwatch, is_quick=is_quick)
    stages = [
        stage for stage in _stages(place, work) if not is_resumed or stage.name in begun.missing
    ]
    calibration = measure(stages, begun, place, stopwatch, report, keep)
    report(ISSUING, 0.97)
    issue = _issue(place, stopwatch, calibration)
    conditions = machine.conditions(place) | calibration.conditions
    return structs.replace(calibration, issue=issue, conditions=conditions, missing=())


def threads_of(device: torch.device) -> int | None:
    return torch.get_num_threads() if device.type == "cpu" else None


def interrupted_on(device: torch.device) -> Calibration:
    """What was kept of a measurement of this device that did not come to its end."""
    name = machine.name(device)
    begun = partial_of(name, threads_of(device))
    if begun is None:
        raise UsageError(f"No interrupted measurement of {name}.\n`tally bench` begins one.")
    if begun.torch_version != torch.__version__:
        raise UsageError(
            f"The interrupted measurement of {name} was made with torch {begun.torch_version}; "
            f"this is {torch.__version__}.\n`tally bench` begins a new one."
        )
    return begun


def begin(device: torch.device, stopwatch: Stopwatch, *, is_quick: bool) -> Calibration:
    """Calibration of the device itself and its memory."""
    return Calibration(
        device=machine.name(device),
        kind=device.type,
        torch_version=str(torch.__version__),
        date=time.strftime("%Y-%m-%d"),
        memory_bytes=machine.memory_bytes(device),
        threads=threads_of(device),
        peak_flop_per_s={},
        bandwidth_bytes_per_s=memory.measured_bandwidth_bytes_per_s(device, stopwatch),
        first_touch_s_per_byte=memory.first_touch_s_per_byte(device, stopwatch),
        issue=Issue(0.0, 0.0, 0.0, 0.0, 0.0),
        conditions={SHAPES: QUICK if is_quick else ALL},
        samples=(),
        missing=(ISSUING,),
    )


class Stage(NamedTuple):
    """Operators of one sort and dtype."""

    name: str
    ladders: Iterable[Ladder]
    cold_bytes: int = 0


def measure(
    stages: Sequence[Stage],
    begun: Calibration,
    device: torch.device,
    stopwatch: Stopwatch,
    report: Said,
    keep: Callable[[Calibration], object],
) -> Calibration:
    """Everything that is measured one operator at a time, and is not in `begun`."""
    called_s = 0.0 if stopwatch.is_gpu else calling_s(device, stopwatch)
    samples = [*begun.samples]
    before = frozenset(sample.call for sample in samples)

    def calibration_so_far(stages_done: int) -> Calibration:
        return structs.replace(
            begun,
            samples=tuple(samples),
            peak_flop_per_s=best_rates(samples),
            missing=(*(stage.name for stage in stages[stages_done:]), ISSUING),
        )

    done = 0
    try:
        for name, ladders, cold_bytes in stages:
            report(name, 0.05 + 0.9 * done / len(stages))
            for sample in climb(ladders, stopwatch, called_s, cold_bytes, before):
                samples.append(sample)  # one by one: an interrupt loses none
            done += 1
            keep(calibration_so_far(done))
    except KeyboardInterrupt:
        keep(calibration_so_far(done))
        raise
    return calibration_so_far(done)


def _stages(device: torch.device, work: Effort) -> Iterator[Stage]:
    for number, dtype in enumerate(work.dtypes):
        name = str(dtype).removeprefix("torch.")
        is_second = number > 0 and device.type == "cpu"
        most_flops = work.most_flops * (SECOND_SHARE if is_second else 1.0)
        limits = (most_flops, work.least_flops)
        yield Stage(f"products {name}", one_by_one(products.products(device, dtype, *limits)))
        yield Stage(f"attention {name}", one_by_one(attention.attention(device, dtype, most_flops)))
        yield Stage(
            f"convolutions {name}", one_by_one(convolutions.convolutions(device, dtype, *limits))
        )
        yield Stage(f"recurrent {name}", one_by_one(recurrent.recurrent(device, dtype, most_flops)))
        streaming = operators.operators(device, dtype, work.most_elements)
        yield Stage(f"operators {name}", streaming, work.cold_bytes)
    yield Stage("copies", one_by_one(copies.copies(device)))


def one_by_one(plans: Iterable[Plan]) -> Iterator[Ladder]:
    """Each with work to do."""
    return (Ladder((plan,)) for plan in plans)


def calling_s(device: torch.device, stopwatch: Stopwatch) -> float:
    """What calling an operator costs that does nothing: it is in the issue rate, not in kernels."""
    nothing = torch.empty(4, device=device)
    alias = torch.ops.aten.alias.default
    with torch.no_grad():
        return stopwatch.host_seconds(lambda: alias(nothing))


def best_rates(samples: Iterable[Sample]) -> dict[str, float]:
    """The most FLOP/s that any product of a dtype reached."""
    best: dict[str, float] = {}
    for sample in samples:
        kind, cost = cost_of(sample.call)
        if kind.is_matmul:
            dtype = "tf32" if is_tf32(sample.call) else sample.call.inputs[0].dtype
            best[dtype] = max(best.get(dtype, 0.0), cost.flops / sample.seconds)
    return best


def _issue(device: torch.device, stopwatch: Stopwatch, calibration: Calibration) -> Issue:
    source = torch.zeros(8, 8, device=device, requires_grad=True)
    view_s = stopwatch.host_seconds(lambda: source.t())
    launch_s = 0.0
    if stopwatch.is_gpu:
        there = torch.zeros(8, device=device)
        launch_s = stopwatch.host_seconds(there.zero_)

    def host_model(call: Call, kind: Kind, cost: Cost) -> Kernel:
        return host_kernel(call, kind, cost, calibration)

    corrections = Corrections(() if stopwatch.is_gpu else calibration.samples, host_model)

    def kernel_s(call: Call) -> float:
        """The host does not wait for a GPU's kernels."""
        if stopwatch.is_gpu:
            return 0.0
        kind, cost = cost_of(call)
        return host_model(call, kind, cost).seconds * corrections.factor(call, kind, cost)[0]

    # Which operators a GPU's host issues does not depend on the GPU: any will do for the trace.
    shown_on = chip(SHOWN_ON) if stopwatch.is_gpu else host_chip(calibration)
    return issuing(device, shown_on, stopwatch.clock, view_s, launch_s, kernel_s)


SHOWN_ON = "A100-SXM-80GB"
