"""All layouts of a training on a cluster, ranked by the time of a step.

Left out, since nothing is lost: GPipe (1F1B takes as long, in less memory) and tensor parallelism
without sequence parallelism (sends as much, holds more). Micro-batches are powers of two, and
groups that share states within them (HSDP) are the chips of one node.
"""

import gc
from bisect import insort
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from operator import add, attrgetter, itemgetter
from typing import Any, NamedTuple

from torchtally.errors import UsageError
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.model import Model
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.degrees import DEGREES, divisors, invalidities
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.pricing import WEIGHTS, Pricing
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.quantity import without_working

SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.ZB_H2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a search may choose from."""

    shards: tuple[Sharding, ...] = tuple(Sharding)
    schedules: tuple[Schedule, ...] = SCHEDULES
    recomputes: tuple[Recompute, ...] = (Recompute.NONE, Recompute.FULL)
    """Selective recomputation is what flash attention does by itself."""
    most_micro_batch: int = 16
    is_tensor_across_nodes: bool = False
    kernel: AttentionKernel = AttentionKernel.FLASH
    implementation: Implementation = Implementation.FUSED
    is_allowed: Callable[[Layout], bool] | None = None
    """Of whole layouts: what a framework has. None: all are."""

    def allows(self, run: Layout, sharing: "Sharing") -> bool:
        return self.is_allowed is None or self.is_allowed(_sharing(run, sharing))


@dataclass(frozen=True, slots=True)
class Ranking:
    """The fastest layouts, and how many there were."""

    workload: Workload
    steps: tuple[Step, ...]
    """Those that fit, fastest first."""
    tried: int
    """Layouts whose memory was counted."""
    fitting: int
    invalid: int
    """Combinations of degrees that cannot be."""
    smallest: Step | None
    """The layout that takes the least memory; None where no layout is possible at all."""
    capacity_bytes: int
    """What a program can have of one chip."""

    @property
    def missing_bytes(self) -> int:
        """What the layout of least memory has too little; 0 where something fits."""
        if self.fitting or self.smallest is None:
            return 0
        return int(self.smallest.memory.total.value) - self.capacity_bytes


def search(
    workload: Workload,
    global_batch: int,
    *,
    choices: Choices | None = None,
    keep: int = 20,
    progress: Callable[[int], None] | None = None,
) -> Ranking:
    """The `keep` fastest layouts for steps of so many sequences, memory checked.

    Of layouts that are equally fast the one that takes less memory comes first, then the one that
    is enumerated first. `progress` is told how many layouts were tried, once for each mesh.
    """
    if global_batch < 1:
        raise UsageError(f"Expected a batch of at least 1 sequence, got {global_batch}.")
    pricing, chosen = Pricing(workload), choices or Choices()
    with _without_collection(), without_working():
        meshes, invalid = _meshes(workload, chosen, global_batch)
        tried = _try_all(pricing, meshes, chosen, global_batch, progress)
        best = _fastest(pricing, tried, keep)
    shown = Pricing(workload)
    return Ranking(
        workload,
        shown.steps(best),
        tried.count,
        sum(len(layouts) for _, layouts in tried.fitting),
        invalid,
        None if tried.smallest is None else shown.step(tried.smallest),
        workload.cluster.chip.total_memory_bytes,
    )


def fastest(
    workload: Workload, global_batch: int, *, choices: Choices | None = None
) -> Step | None:
    """The first that `search` finds, without counting how many there are.

    Ways to run wait by what no step of theirs takes less than: at first by a floor that is soon
    known, then, each schedule by itself, by the time of their layers. Memory is counted of those
    alone that come to the front again.
    """
    pricing, chosen = Pricing(workload), choices or Choices()
    capacity = workload.cluster.chip.total_memory_bytes
    best: tuple[float, int, int, int, Layout] | None = None
    states: dict[Any, States] = {}
    with _without_collection(), without_working():
        queue = list(_waiting(pricing, chosen, global_batch))
        heapify(queue)
        while queue and (best is None or queue[0][0] <= best[0]):
            _, number, run, options, is_by_layers = heappop(queue)
            if not is_by_layers:
                layers_s = pricing.layers_s(run)
                for option in options:
                    heappush(
                        queue,
                        (option.rounds * layers_s, number + option.place, run, (option,), True),
                    )
                continue
            (option,) = options
            run = replace(run, schedule=option.schedule, virtual_stages=option.chunks)
            key = _weights(run)
            if key not in states:
                states[key] = _states(pricing, run, chosen)
            beside = pricing.beside_bytes(run)
            for place, (sharing, held) in enumerate(states[key][run.recompute]):
                size = max(map(add, beside, held))
                if size <= capacity and chosen.allows(run, sharing):
                    layout = _sharing(run, sharing)
                    found = (pricing.step_s(layout), size, number, place, layout)
                    best = found if best is None else min(best, found, key=itemgetter(0, 1, 2, 3))
    return None if best is None else Pricing(workload).step(best[-1])


class ScheduleOption(NamedTuple):
    """A schedule for a run's micro-batches."""

    rounds: float
    """How often a step takes the time of all layers."""
    place: int
    """How many layouts are enumerated between the run's first option and this one."""
    schedule: Schedule
    chunks: int


def _waiting(
    pricing: Pricing, choices: Choices, global_batch: int
) -> Iterator[tuple[float, int, Layout, tuple[ScheduleOption, ...], bool]]:
    """Every run with its options: what no step by them takes less than (a floor), the number of
    the first in the order of enumeration, and that it is no time by layers.
    """
    number, recomputes = 0, choices.recomputes
    alike: dict[tuple[int, int], tuple[ScheduleOption, ...]] = {}
    for mesh in _meshes(pricing.workload, choices, global_batch)[0]:
        for batches in _batches(mesh, choices, global_batch):
            key = mesh.pipeline, batches.micro_batches
            if key not in alike:
                alike[key] = tuple(_options(pricing, batches, choices))
            options = alike[key]
            if not options:
                continue
            rounds = min(option.rounds for option in options)
            for place, recompute in enumerate(recomputes):
                run = replace(batches, recompute=recompute)
                yield rounds * pricing.floor_of_layers_s(run), number + place, run, options, False
            number += len(options) * len(recomputes)


def _options(pricing: Pricing, batches: Layout, choices: Choices) -> Iterator[ScheduleOption]:
    """They depend on the stages and the micro-batches alone."""
    hows = _schedules(batches, pricing.workload.model, choices, batches.micro_batches)
    for place, how in enumerate(hows):
        yield ScheduleOption(pricing.rounds(batches, *how), place * len(choices.recomputes), *how)


Sharing = tuple[Sharding, int | None]
"""What is shared, and in groups of how many."""
States = Mapping[Recompute, list[tuple[Sharing, tuple[int, ...]]]]
"""Bytes that the first and the last stage's chips hold from step to step, by what they share."""
_weights = attrgetter(*WEIGHTS)


@dataclass(slots=True)
class _Tried:
    """Layouts whose memory was counted."""

    count: int = 0
    fitting: list[tuple[Layout, list[tuple[int, int, Sharing]]]] = field(default_factory=list)
    """How they run; then for each of its layouts bytes, number in the order of trial, and what
    it shares."""
    smallest: Layout | None = None
    least_bytes: int = 0


def _try_all(
    pricing: Pricing,
    meshes: list[Layout],
    choices: Choices,
    global_batch: int,
    progress: Callable[[int], None] | None,
) -> _Tried:
    """States depend on what is shared, all else on how the mesh is run: each is counted once."""
    trials = _Tried()
    capacity = pricing.workload.cluster.chip.total_memory_bytes
    states: dict[Any, States] = {}
    for mesh in meshes:
        key = _weights(mesh)
        if key not in states:
            states[key] = _states(pricing, mesh, choices)
        for run in _runs(mesh, pricing.workload, choices, global_batch):
            beside, fitting = pricing.beside_bytes(run), []
            for sharing, held in states[key][run.recompute]:
                if not choices.allows(run, sharing):
                    continue
                size = max(map(add, beside, held))
                trials.count += 1
                if trials.smallest is None or size < trials.least_bytes:
                    trials.smallest, trials.least_bytes = _sharing(run, sharing), size
                if size <= capacity:
                    fitting.append((size, trials.count, sharing))
            if fitting:
                trials.fitting.append((run, fitting))
        if progress is not None:
            progress(trials.count)
    return trials


def _states(pricing: Pricing, mesh: Layout, choices: Choices) -> States:
    """States of every way to share them."""
    shared = [
        (sharing, _sharing(mesh, sharing)) for sharing in _sharings(mesh, pricing.workload, choices)
    ]
    return {
        recompute: [
            (sharing, pricing.states_bytes(replace(layout, recompute=recompute)))
            for sharing, layout in shared
        ]
        for recompute in choices.recomputes
    }


def _sharing(run: Layout, sharing: Sharing) -> Layout:
    shard, shard_group = sharing
    return replace(run, shard=shard, shard_group=shard_group)


def _fastest(pricing: Pricing, tried: _Tried, keep: int) -> list[Layout]:
    """Layouts by time, then memory, then the order of enumeration.

    A step takes no less than its micro-batches one after the other. So layouts are looked at from
    the least such bound on, until it is above the times of all that are kept.
    """
    least = sorted((pricing.least_s(run), place) for place, (run, _) in enumerate(tried.fitting))
    best: list[tuple[float, int, int, Layout]] = []
    for least_s, place in least:
        if len(best) >= keep and least_s > best[-1][0]:
            break
        run, layouts = tried.fitting[place]
        for size, number, sharing in layouts:
            layout = _sharing(run, sharing)
            insort(best, (pricing.step_s(layout), size, number, layout), key=itemgetter(0, 1, 2))
        del best[keep:]
    return [layout for *_, layout in best]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Quantities make no circles: looking for some took a third of a search."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _meshes(workload: Workload, choices: Choices, global_batch: int) -> tuple[list[Layout], int]:
    """Degrees that are possible, and how many combinations are not."""
    model, cluster = workload.model, workload.cluster
    chips = cluster.count
    most = chips if choices.is_tensor_across_nodes else min(chips, cluster.node_size)
    meshes = [Layout(data=chips, kernel=choices.kernel, implementation=choices.implementation)]
    for degree in DEGREES:
        meshes = [split for mesh in meshes for split in degree.meshes(mesh, model, most)]
    possible = [
        mesh
        for mesh in meshes
        if global_batch % mesh.data == 0
        and not invalidities(mesh, model, cluster, sequence=workload.sequence)
    ]
    return possible, len(meshes) - len(possible)


def _runs(
    mesh: Layout, workload: Workload, choices: Choices, global_batch: int
) -> Iterator[Layout]:
    """Every way to run the mesh, but for what is shared."""
    for batches in _batches(mesh, choices, global_batch):
        for schedule, chunks in _schedules(mesh, workload.model, choices, batches.micro_batches):
            for recompute in choices.recomputes:
                yield replace(
                    batches, schedule=schedule, virtual_stages=chunks, recompute=recompute
                )


def _batches(mesh: Layout, choices: Choices, global_batch: int) -> Iterator[Layout]:
    """Every way to cut the batch."""
    each = global_batch // mesh.data
    most = min(choices.most_micro_batch, each)
    for micro_batch in (1 << power for power in range(most.bit_length())):
        if each % micro_batch == 0:
            yield replace(mesh, micro_batch=micro_batch, micro_batches=each // micro_batch)


def _sharings(mesh: Layout, workload: Workload, choices: Choices) -> Iterator[Sharing]:
    """What is shared, among all; for FSDP also among those of one node (HSDP)."""
    for shard in choices.shards:
        if shard is Sharding.NONE or mesh.replicas > 1:
            yield shard, None
    near = workload.cluster.node_size // mesh.tensor
    is_split = near * mesh.tensor % mesh.expert_chips == 0
    is_possible = near > 1 and mesh.replicas % near == 0 and is_split
    if Sharding.ZERO3 in choices.shards and is_possible and near < mesh.replicas:
        yield Sharding.ZERO3, near


def _schedules(
    mesh: Layout, model: Model, choices: Choices, micro_batches: int
) -> Iterator[tuple[Schedule, int]]:
    if mesh.pipeline == 1:
        yield Schedule.ONE_F_ONE_B, 1
        return
    for schedule in choices.schedules:
        if schedule is not Schedule.INTERLEAVED:
            yield schedule, 1
        elif micro_batches % mesh.pipeline == 0:
            for chunks in _chunks(model.layers, mesh.pipeline):
                yield schedule, chunks


def _chunks(layers: int, stages: int) -> list[int]:
    """Chunks into which a stage's layers divide, or would if it had one layer more or fewer."""
    most, full = layers // stages, -(-layers // stages)
    counts = {*divisors(most), *divisors(full)}
    return sorted(chunks for chunks in counts if 1 < chunks <= most)
