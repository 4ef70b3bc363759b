"""A calibration from what a profiler measured of real runs: one sample for each distinct call.

Known limits. A profiler's file says nothing of clocks and power, and kernels ran with whatever was
in the caches, not by themselves as `tally bench` runs them. What the host takes to issue operators
is longer under a profiler than without one, so it is none of this.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from msgspec.structs import replace

from torchtally.chips import Chip
from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.errors import UsageError
from torchtally.timing.calibration.calibration import Calibration, Issue
from torchtally.timing.calibration.features import is_tf32
from torchtally.timing.calibration.sample import Sample
from torchtally.timing.constants import REACH, SHORTEST_S
from torchtally.trace import Call, Trace
from torchtally.work import Kind, known_cost

LEFT_OUT = frozenset({Kind.COMMUNICATION, Kind.UNCOUNTED})


@dataclass(frozen=True, slots=True)
class Imported:
    """Samples of traces, and the best rates among them."""

    samples: tuple[Sample, ...]
    peak_flop_per_s: dict[str, float]
    bandwidth_bytes_per_s: float


def import_samples(traces: Iterable[Trace]) -> Imported:
    """The samples of measured traces of one chip: of each distinct call the median of its runs."""
    runs: dict[Call, list[float]] = defaultdict(list)
    for trace in traces:
        for call, seconds in measured_calls(trace):
            runs[call].append(seconds)
    samples, peaks, bandwidth = [], dict[str, float](), 0.0
    for call, times in runs.items():
        seconds = median(times)
        kind_and_cost = known_cost(call)
        if kind_and_cost is None or seconds < SHORTEST_S or not is_sampled(call, kind_and_cost[0]):
            continue
        kind, cost = kind_and_cost
        samples.append(Sample(call, seconds))
        bandwidth = max(bandwidth, cost.bytes / seconds)
        if kind is Kind.PRODUCT and call.inputs:
            dtype = "tf32" if is_tf32(call) else call.inputs[-1].dtype
            peaks[dtype] = max(peaks.get(dtype, 0.0), cost.flops / seconds)
    return Imported(tuple(samples), peaks, bandwidth)


def measured_calls(trace: Trace) -> Iterable[tuple[Call, float]]:
    """Each operator that launched kernels: its call, and how long they ran."""
    if trace.measured is None:
        return []
    seconds: dict[int, float] = defaultdict(float)
    for kernel in trace.measured.kernels:
        seconds[kernel.op] += kernel.duration_ns * 1e-9
    return [(trace.calls[trace.ops[place].call], taken) for place, taken in seconds.items()]


def is_sampled(call: Call, kind: Kind) -> bool:
    """Calls that the roofline times by themselves, of dtypes that it knows, on the device alone."""
    specs = (*call.inputs, *call.outputs)
    return (
        kind not in LEFT_OUT
        and not kind.is_free
        and all(spec.dtype in DTYPE_BYTES for spec in specs)
        and all(spec.is_on_device or not spec.shape for spec in specs)
    )


def calibration_from(
    traces: Sequence[Trace], chip: Chip, *, date: str, issue: Issue, before: Calibration | None
) -> Calibration:
    """A calibration of a chip. Of calls that `before`, an earlier measurement, has, too, those
    stay: they ran by themselves. `issue` is what the host takes, from elsewhere.

    Raises UsageError where the traces have no sample.
    """
    new = import_samples(traces)
    if not new.samples:
        raise UsageError(
            "No operator of these traces has shapes and a kernel: nothing to learn from.\n"
            "Record with record_shapes=True: `tally explain --record`."
        )
    names = sorted({os.path.basename(trace.measured.file) for trace in traces if trace.measured})
    source = f"profiler traces: {', '.join(names)}"
    if before is not None:
        known = {sample.call for sample in before.samples}
        added = tuple(sample for sample in new.samples if sample.call not in known)
        return replace(
            before,
            samples=(*before.samples, *added),
            conditions={**before.conditions, "imported": source},
        )
    return Calibration(
        device=chip.driver_names[0] if chip.driver_names else chip.name,
        kind="cuda",
        torch_version="",
        date=date,
        memory_bytes=chip.memory_bytes,
        threads=None,
        peak_flop_per_s=new.peak_flop_per_s,
        bandwidth_bytes_per_s=new.bandwidth_bytes_per_s,
        first_touch_s_per_byte=0.0,
        issue=issue,
        conditions={"measured by": source, "issue": "estimated, not measured"},
        samples=new.samples,
        reach=REACH,
    )
