"""Regions of a trace that are compiled by themselves, forward and backward.

A region is what one call of a compiled module runs. Its forward pass is a run of operators without
a gap, and so is the backward pass that reads what that one kept.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from torchtally.programs.compiled.flow import BACKWARD_PHASES, DataFlow, FlowNode, Value
from torchtally.programs.compiled.kept import kept_values
from torchtally.programs.compiled.kernels import DerivedKernel, kernels_of, nodes_for
from torchtally.trace import Phase, Role, Trace

RegionOf = Callable[[str], str | None]
"""From a module's path to its region's name; None outside of all."""


@dataclass(frozen=True, slots=True)
class Regions:
    """What is compiled, or has kernels of its own, by itself."""

    of: RegionOf
    name: str
    """Of what kernels are made: "each layer"."""
    fuses_updates: bool = False
    """A step of an optimizer is one kernel."""


LAYER = re.compile(r"(?:[^.]+\.)+?\d+(?=\.|$)")
COMPILED_PHASES = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE})


def layer_of(module: str) -> str | None:
    """The layer that a module is in, "model.layers.3"; None outside of a list of layers."""
    layer = LAYER.match(module)
    return layer[0] if layer else None


def block_of(module: str) -> str:
    """The block that a module is in: of a layer its norm, attention or feed-forward, each by itself
    ("model.layers.3.mlp"), and what is around them; outside of layers the module.
    """
    layer = layer_of(module)
    if layer is None:
        return module
    return ".".join([layer, *module[len(layer) + 1 :].split(".")[:1]]).rstrip(".")


COMPILED_LAYERS = Regions(layer_of, "layers compiled each by itself")
FUSED_BLOCKS = Regions(
    block_of, "fused norms, rotations, activations, sums, losses and updates", fuses_updates=True
)


@dataclass(eq=False, slots=True)
class RegionRun:
    """Operators without a gap of one region, in one direction."""

    region: str
    is_backward: bool
    start: int
    stop: int
    """Positions in the trace."""
    flow: DataFlow | None = None
    """Of the region, forward and backward."""
    kernels: list[DerivedKernel] = field(default_factory=list)
    leaving: dict[int, Value] = field(default_factory=dict)
    """By recorded storage: values that it makes and that are read outside of the region."""
    kept: set[Value] = field(default_factory=set)
    """Of a forward run: values that it makes for its backward run."""
    donated: set[Value] = field(default_factory=set)
    """Of a backward run: what the forward run kept for it alone."""

    @property
    def wanted(self) -> set[Value]:
        """Values that it makes and that are read behind it."""
        return {*self.leaving.values(), *self.kept}


def runs_of(trace: Trace, region_of: RegionOf) -> list[RegionRun]:
    """The runs of all regions, in order."""
    runs: list[RegionRun] = []
    by_site = [region_of(site.module) for site in trace.sites]
    ends = set(trace.step_ends)
    end = 0
    """Up to where the last run can still go on: nothing behind it was of another module."""
    for position, op in enumerate(trace.ops):
        is_backward = op.phase in BACKWARD_PHASES
        last = runs[-1] if runs else None
        goes_on = (
            last is not None
            and end == position
            and last.is_backward == is_backward
            and op.phase in COMPILED_PHASES
            and op.clock not in ends
        )
        region = by_site[op.site] if op.phase in COMPILED_PHASES else None
        if region is None:
            # Backward of what a script changed in place has lost its module.
            end += goes_on and not trace.sites[op.site].module
            continue
        if last is not None and goes_on and last.region == region:
            last.stop = position + 1
        else:
            runs.append(RegionRun(region, is_backward, position, position + 1))
        end = position + 1
    return runs


def pairs_of(
    trace: Trace, runs: Iterable[RegionRun]
) -> list[tuple[RegionRun | None, RegionRun | None]]:
    """Each forward run with the backward run that reads what it made."""
    forwards: dict[str, list[RegionRun]] = {}
    made_by: dict[RegionRun, frozenset[int]] = {}
    pairs: list[tuple[RegionRun | None, RegionRun | None]] = []
    for run in runs:
        ops = trace.ops[run.start : run.stop]
        if not run.is_backward:
            forwards.setdefault(run.region, []).append(run)
            made_by[run] = frozenset(n for op in ops for n in op.outputs)
            continue
        read = {n for op in ops for n in op.inputs}
        waiting = forwards.get(run.region, [])
        first = next((each for each in waiting if not made_by[each].isdisjoint(read)), None)
        if first is not None:
            waiting.remove(first)
        pairs.append((first, run))
    return pairs + [(run, None) for waiting in forwards.values() for run in waiting]


Uses = dict[int, list[int]]
"""By storage: the positions of the operators that read or write it."""


def uses_of(trace: Trace) -> Uses:
    uses: Uses = {}
    for position, op in enumerate(trace.ops):
        for number in {*op.inputs, *op.outputs}:
            uses.setdefault(number, []).append(position)
    return uses


def compile_pair(
    trace: Trace, uses: Uses, forward: RegionRun | None, backward: RegionRun | None
) -> None:
    """Find the kernels of a forward run and of the backward run that goes with it."""
    flow = DataFlow(trace)
    there: list[FlowNode] = []
    if forward is not None:
        there = flow.add(trace.ops[forward.start : forward.stop])
        forward.flow = flow
        forward.leaving = leaving(flow, there, trace, uses, forward, backward)
    if backward is None:
        assert forward is not None
        forward.kernels = kernels_of(flow, there, forward.wanted)
        return
    back = flow.add(trace.ops[backward.start : backward.stop])
    backward.flow = flow
    backward.leaving = leaving(flow, back, trace, uses, backward, None)
    if forward is None:
        backward.kernels = kernels_of(flow, back, backward.wanted)
        return
    parameters = frozenset(s.number for s in trace.storages if s.role is Role.PARAMETER)
    kept = kept_values(there, nodes_for(back, backward.wanted), parameters)
    forward.kept = {value for value in kept if value.maker is not None}
    backward.donated = forward.kept - set(forward.leaving.values())
    forward.kernels = kernels_of(flow, there, forward.wanted)
    backward.kernels = kernels_of(flow, [*there, *back], backward.wanted, kept, back)


def leaving(
    flow: DataFlow,
    nodes: Iterable[FlowNode],
    trace: Trace,
    uses: Uses,
    run: RegionRun,
    backward: RegionRun | None,
) -> dict[int, Value]:
    """Values that a run makes and that are read elsewhere or held by the script, by storage."""
    own = set(nodes)
    return {
        number: value
        for number, value in flow.latest.items()
        if value.maker in own and is_held(number, trace, uses, run, backward)
    }


def is_held(
    number: int, trace: Trace, uses: Uses, run: RegionRun, backward: RegionRun | None
) -> bool:
    """Whether a storage is read behind a run and its backward run, or outlives both."""
    storage = trace.storages[number]
    if storage.role is not None:
        return True
    inside = [run] if backward is None else [run, backward]
    if any(
        position >= run.stop and not any(each.start <= position < each.stop for each in inside)
        for position in uses[number]
    ):
        return True
    return storage.died is None or storage.died > inside[-1].stop
