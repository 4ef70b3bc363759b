"""How a plan names what it speaks of."""

from collections.abc import Iterator

from torchtally.chips import Cluster
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.quantity import of
from torchtally.plan.questions.answer import Part
from torchtally.plan.questions.request import Request
from torchtally.units import Unit, format_count


def subject_named(request: Request) -> str:
    """The model: "llama-3-70b (70.55 B parameters)"."""
    subject = request.of_subject
    size = f"{format_count(int(subject.parameters.value))} parameters"
    return f"{subject.name} ({size})" if subject.name else size


def chips_named(cluster: Cluster) -> tuple[Part, ...]:
    """As in "1,024 H100-SXM"."""
    return of(cluster.count, Unit.CHIPS).named("chips"), f" {cluster.chip.name}"


LEGEND = (
    "dp: data parallel, /z1 to /z3 as ZeRO shares states (z3: FSDP; :8 in groups of 8); tp: tensor "
    "and sequence parallel; pp: pipeline stages, x2 with 2 chunks each, /zb1 and /zb2 zero-bubble; "
    "cp: context parallel; ep: expert parallel; mb 1x8: 8 micro-batches of 1; full: all layers "
    "made again."
)
"""What `layout_in_short` abbreviates."""


def layout_in_short(layout: Layout) -> str:
    """A layout in few letters: "dp128/z2 tp2 pp2x40 cp2 mb 1x8"."""
    return " ".join(_short(layout))


SCHEDULES = {
    Schedule.GPIPE: "/gpipe",
    Schedule.ONE_F_ONE_B: "",
    Schedule.INTERLEAVED: "",
    Schedule.ZB_H1: "/zb1",
    Schedule.ZB_H2: "/zb2",
}


def _short(layout: Layout) -> Iterator[str]:
    shared = "" if layout.shard is Sharding.NONE else f"/z{layout.shard.stage}"
    group = f":{layout.shard_group}" if layout.shard_group else ""
    yield f"dp{layout.data}{shared}{group}"
    if layout.tensor > 1:
        yield f"tp{layout.tensor}"
    if layout.pipeline > 1:
        chunks = f"x{layout.virtual_stages}" if layout.virtual_stages > 1 else ""
        yield f"pp{layout.pipeline}{chunks}{SCHEDULES[layout.schedule]}"
    if layout.context > 1:
        yield f"cp{layout.context}"
    if layout.expert > 1:
        yield f"ep{layout.expert}"
    yield f"mb {layout.micro_batch}x{layout.micro_batches}"
    if layout.recompute is not Recompute.NONE:
        yield str(layout.recompute)


BOUNDS = {
    "memory bandwidth": "memory",
    "tensor-parallel network": "tp network",
    "context-parallel network": "cp network",
    "expert-parallel network": "ep network",
    "pipeline network": "pp network",
    "pipeline bubble": "bubble",
    "data-parallel network": "dp network",
}
"""What bounds a step, as short as a column of a table."""


def bound_in_short(bound: str) -> str:
    """As in "dp network"; "compute" and "optimizer" stay as they are."""
    return BOUNDS.get(bound, bound)
