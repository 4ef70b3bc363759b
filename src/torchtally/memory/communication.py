"""What ranks share: storages of parameters gathered from their shards, buffers of collectives, and
the groups that parameters and gradients are communicated in.

Followed through the trace: a collective ("group" among its literals) reads and writes storages,
and copies carry on what they hold. FSDP copies its shards into the input of an all-gather, and the
result into the whole parameters; it and DDP copy gradients into the buffers that they reduce.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torchtally.trace import Call, Op, Role, Trace

COPIES = frozenset(
    [
        "aten._foreach_copy_", "aten.copy_", "aten._to_copy", "aten.clone", "aten.cat",
        "aten.split_with_sizes_copy", "aten.constant_pad_nd", "aten.mul", "aten.div", "aten.mul_",
        "aten.div_", "aten._chunk_cat", "fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy",
        "fsdp.chunk_cat",
    ]
)  # fmt: skip
"""Carry on what their source holds; scaled, where an average is meant (DDP's reducer)."""

SPREADS = frozenset(["aten.split_with_sizes_copy", "fsdp.split_with_sizes_copy", "aten.cat"])
"""Take a gathered buffer apart, or put its chunks together: the results are the parameters."""


@dataclass(slots=True)
class Communication:
    """By number of storage or group. Of a run of one rank: nothing."""

    gathered: set[int] = field(default_factory=set)
    """Storages that hold parameters gathered from their shards."""
    buffers: set[int] = field(default_factory=set)
    """Other storages that collectives read or write."""
    gather_groups: dict[int, int] = field(default_factory=dict)
    """By storage of a shard: the group that gathers it."""
    reduced_bytes: dict[int, int] = field(default_factory=dict)
    """By group: bytes of the distinct gradients that are reduced in it."""


def communication(trace: Trace) -> Communication:
    """All that the collectives of a trace tell."""
    storages = Communication()
    if not trace.groups or trace.measured is not None:
        return storages
    origins = Origins(trace)
    for op in trace.ops:
        origins.follow(op, storages)
    return storages


class Origins:
    """Which storages hold values of which parameters and gradients, up to an operator."""

    def __init__(self, trace: Trace) -> None:
        roles = [storage.role for storage in trace.storages]
        self.trace = trace
        self.roles = roles
        self.shards: dict[int, frozenset[int]] = {
            number: frozenset([number])
            for number, role in enumerate(roles)
            if role is Role.PARAMETER
        }
        """Parameters that a storage has values of, by its number."""
        self.gradients: dict[int, frozenset[int]] = {
            number: frozenset([number])
            for number, role in enumerate(roles)
            if role is Role.GRADIENT
        }
        self._counted: set[tuple[int, int]] = set()
        self._groups = [group_of(call) for call in trace.calls]
        self._matters = [
            group is not None or call.name in COPIES
            for call, group in zip(trace.calls, self._groups, strict=True)
        ]

    def follow(self, op: Op, storages: Communication) -> None:
        if not self._matters[op.call]:
            return
        call, group = self.trace.calls[op.call], self._groups[op.call]
        if group is None:
            self._copy(call, op, storages)
        else:
            self._communicate(call, group, op, storages)

    def _copy(self, call: Call, op: Op, storages: Communication) -> None:
        sources, targets = ends_of(call, op)
        spreads = call.name in SPREADS and any(source in storages.gathered for source in sources)
        for held in (self.shards, self.gradients):
            origins = frozenset().union(*(held.get(source, ()) for source in sources))
            if origins:
                for target in targets:
                    held[target] = held.get(target, frozenset()) | origins
        if spreads:
            storages.gathered.update(self._without_role(targets))

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
            for number in touched:
                for gradient in self.gradients.get(number, ()):
                    if (group, gradient) not in self._counted:
                        self._counted.add((group, gradient))
                        size = self.trace.storages[gradient].requested_bytes
                        storages.reduced_bytes[group] = storages.reduced_bytes.get(group, 0) + size

    def _without_role(self, numbers: Iterable[int]) -> Iterator[int]:
        return (number for number in numbers if self.roles[number] is None)


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
