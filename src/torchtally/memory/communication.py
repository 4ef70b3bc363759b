"""What ranks share: storages of parameters gathered from their shards, buffers of collectives, and
the groups that parameters and gradients are communicated in.

Followed through the trace: a collective ("group" among its literals) reads and writes storages,
and copies carry on what they hold. FSDP copies its shards into the input of an all-gather, and the
result into the whole parameters; it and DDP copy gradients into the buffers that they reduce.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torchtally.trace import Call, Op, Role, Trace

COPIES = frozenset(
    """
    aten._foreach_copy_ aten.copy_ aten._to_copy aten.clone aten.cat aten.split_with_sizes_copy
    aten.constant_pad_nd aten.mul aten.div aten.mul_ aten.div_ aten._chunk_cat
    fsdp.all_gather_copy_in fsdp.split_with_sizes_copy fsdp.chunk_cat
    """.split()
)
"""Carry on what their source holds; scaled, where an average is meant (DDP's reducer)."""

SPREADS = frozenset(["aten.split_with_sizes_copy", "fsdp.split_with_sizes_copy", "aten.cat"])
"""Take a gathered buffer apart, or put its chunks together: the results are the parameters."""

SUMS = frozenset(["aten.add_", "aten._foreach_add_"])
"""Add up gradients in a buffer of the script's own."""
CLEARS = frozenset(["aten.zero_", "aten.fill_", "aten._foreach_zero_"])


@dataclass(slots=True)
class Communication:
    """Communication by number of storage or group. Of a run of one rank: nothing."""

    gathered: set[int] = field(default_factory=set)
    """Storages that hold parameters gathered from their shards."""
    buffers: set[int] = field(default_factory=set)
    """Other storages that collectives read or write."""
    gather_groups: dict[int, int] = field(default_factory=dict)
    """By storage of a shard: the group that gathers it."""
    reduced: dict[int, Mapping[int, float]] = field(default_factory=dict)
    """By group: bytes of each gradient, by number of its storage, that are reduced in it within a
    step, that one in which most are."""
    exchanged: set[int] = field(default_factory=set)
    """Groups in which each rank sends something else to each (all-to-all)."""
    activations: dict[int, int] = field(default_factory=dict)
    """By group: bytes gathered or reduced that hold neither parameters nor gradients, within a
    step, that one in which most are."""


def communication(trace: Trace) -> Communication:
    """All that the collectives of a trace tell."""
    storages = Communication()
    if not trace.groups or trace.measured is not None:
        return storages
    origins = Origins(trace)
    for op in trace.ops:
        origins.follow(op, storages)
    storages.reduced = most_of_a_step(origins.reduced_bytes)
    for (group, _), size in origins.activation_bytes.items():
        storages.activations[group] = max(storages.activations.get(group, 0), size)
    return storages


class Origins:
    """Which storages hold values of which parameters and gradients, up to an operator."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.roles = [storage.role for storage in trace.storages]
        self.shards = self._of_role(Role.PARAMETER)
        """Parameters that a storage has values of, by its number."""
        self.gradients = self._of_role(Role.GRADIENT)
        self.reduced_bytes: dict[int, dict[int, dict[int, float]]] = {}
        """By group and step: of each gradient."""
        self.activation_bytes = Counter[tuple[int, int]]()
        """By group and step."""
        self._groups = [group_of(call) for call in trace.calls]
        self._matters = [
            group is not None or call.name in COPIES | SUMS | CLEARS
            for call, group in zip(trace.calls, self._groups, strict=True)
        ]

    def _of_role(self, role: Role) -> dict[int, set[int]]:
        return {number: {number} for number, each in enumerate(self.roles) if each is role}

    def follow(self, op: Op, storages: Communication) -> None:
        if not self._matters[op.call]:
            return
        call, group = self.trace.calls[op.call], self._groups[op.call]
        if group is not None:
            self._communicate(call, group, op, storages)
        elif call.name in COPIES:
            self._copy(call, op, storages)
        else:
            self._add_up(call, op)

    def _copy(self, call: Call, op: Op, storages: Communication) -> None:
        sources, targets = ends_of(call, op)
        spreads = call.name in SPREADS and any(source in storages.gathered for source in sources)
        for held in (self.shards, self.gradients):
            carry(held, sources, targets)
        if spreads:
            storages.gathered.update(self._without_role(targets))

    def _add_up(self, call: Call, op: Op) -> None:
        """Gradients alone: what an optimizer adds to a parameter is one no more."""
        sources, targets = ends_of(call, op)
        targets = list(self._without_role(targets))
        if call.name in SUMS:
            carry(self.gradients, sources, targets)
        else:
            for target in targets:
                self.gradients.pop(target, None)

    def _communicate(self, call: Call, group: int, op: Op, storages: Communication) -> None:
        touched = [number for number in (*op.inputs, *op.outputs) if number >= 0]
        shards = [shard for number in touched for shard in self.shards.get(number, ())]
        free = set(self._without_role(touched))
        if "gather" in call.name and shards:
            storages.gathered |= free
            for shard in shards:
                storages.gather_groups.setdefault(shard, group)
        else:
            storages.buffers |= free - storages.gathered
        if "reduce" in call.name:
            self._reduce(call, group, op)
        if "alltoall" in call.name or "all_to_all" in call.name:
            storages.exchanged.add(group)
        elif not shards and not any(number in self.gradients for number in touched):
            step = bisect_right(self.trace.step_ends, op.clock)
            self.activation_bytes[group, step] += sum(spec.bytes for spec in call.inputs)

    def _reduce(self, call: Call, group: int, op: Op) -> None:
        step = bisect_right(self.trace.step_ends, op.clock)
        reduced = self.reduced_bytes.setdefault(group, {}).setdefault(step, {})
        # What is sent may be a part of a flat buffer: of each gradient in it as much.
        parts: dict[int, float] = {}
        specs, numbers = (*call.inputs, *call.outputs), (*op.inputs, *op.outputs)
        for spec, number in zip(specs, numbers, strict=True):
            if number >= 0:
                whole = self.trace.storages[number].requested_bytes
                parts[number] = max(parts.get(number, 0.0), spec.bytes / max(whole, spec.bytes, 1))
        sent: dict[int, float] = {}
        for number, part in parts.items():
            for gradient in self.gradients.get(number, ()):
                size = self.trace.storages[gradient].requested_bytes
                sent[gradient] = max(sent.get(gradient, 0.0), part * size)
        for gradient, part in sent.items():
            most = self.trace.storages[gradient].requested_bytes
            reduced[gradient] = min(reduced.get(gradient, 0.0) + part, most)
        carry(self.gradients, *ends_of(call, op))

    def _without_role(self, numbers: Iterable[int]) -> Iterator[int]:
        return (number for number in numbers if self.roles[number] is None)


def carry(held: dict[int, set[int]], sources: Iterable[int], targets: Iterable[int]) -> None:
    """Let the targets hold what the sources do, too."""
    origins = set[int]().union(*(held.get(source, ()) for source in sources))
    if origins:
        for target in targets:
            held.setdefault(target, set()).update(origins)


def most_of_a_step(
    reduced_bytes: Mapping[int, Mapping[int, Mapping[int, float]]],
) -> dict[int, Mapping[int, float]]:
    """Bytes by group: of the step with most, each gradient's."""
    return {
        group: max(steps.values(), key=lambda gradients: sum(gradients.values()))
        for group, steps in reduced_bytes.items()
    }


def group_of(call: Call) -> int | None:
    """The group of a collective; None of any other operator."""
    group = call.literal("group")
    return group if isinstance(group, int) else None


def ends_of(call: Call, op: Op) -> tuple[list[int], list[int]]:
    """The storages that a copy reads, and those that it writes."""
    sources: list[int] = []
    targets = [number for number in op.outputs if number >= 0]
    for spec, number in zip(call.inputs, op.inputs, strict=True):
        if number >= 0:
            (targets if spec.is_written else sources).append(number)
    return sources, targets
