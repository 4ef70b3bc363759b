"""Which operator of a trace reads what another one wrote."""

from collections.abc import Sequence
from functools import cached_property

from torchtally.trace import Call, Op, Phase, Trace
from torchtally.trace.sleep import SLEEP


class Flow:
    """The flow of data through the storages of a trace. An operator is named by its place."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ops: Sequence[Op] = trace.ops
        self.is_view = [call.is_view for call in trace.calls]
        self.is_sleep = [call.name == SLEEP for call in trace.calls]
        self._written_places = [_written_places(call) for call in trace.calls]
        self.differentiated = frozenset(trace.differentiated)

    @cached_property
    def untrained(self) -> list[int]:
        """Forward operators from which no value reaches another phase; no views, no sleeps."""
        forward, evaluation = Phase.FORWARD, Phase.EVALUATION
        differentiated = self.differentiated
        needed: set[int] = set()
        untrained = []
        for place in range(len(self.ops) - 1, -1, -1):
            op = self.ops[place]
            is_left_out = self.is_view[op.call] or self.is_sleep[op.call]
            if op.phase is evaluation or (op.phase is forward and is_left_out):
                continue
            if (
                op.phase is not forward
                or op.clock in differentiated
                or not needed.isdisjoint(self.written_storages(op))
            ):
                needed.update(op.inputs)
            else:
                untrained.append(place)
            needed.discard(-1)  # the host's memory
        return untrained[::-1]

    @cached_property
    def outliving_storages(self) -> set[int]:
        """Storages that outlive the step in which they are allocated: prepared for later ones."""
        kept = set()
        ends = iter(self.trace.step_ends)
        end = next(ends, None)
        for storage in self.trace.storages:
            while end is not None and end <= storage.born:
                end = next(ends, None)
            if end is None:
                break
            if storage.died is None or storage.died >= end:
                kept.add(storage.number)
        return kept

    @cached_property
    def _place_of_tick(self) -> dict[int, int]:
        return {op.clock: place for place, op in enumerate(self.ops)}

    def maker(self, number: int) -> int | None:
        """The operator that allocated a storage; None where none did."""
        return self._place_of_tick.get(self.trace.storages[number].born)

    def is_differentiated(self, place: int | None) -> bool:
        """A backward pass came back to it, or it is of another phase than the forward pass."""
        if place is None:
            return False
        op = self.ops[place]
        is_forward = op.phase in (Phase.FORWARD, Phase.EVALUATION)
        return not is_forward or op.clock in self.differentiated

    def changed_storages(self, place: int) -> list[int]:
        """Storages of its inputs that it writes to."""
        op = self.ops[place]
        return [op.inputs[n] for n in self._written_places[op.call] if op.inputs[n] >= 0]

    def written_storages(self, op: Op) -> tuple[int, ...]:
        """Storages that it writes to, new ones and changed ones; -1 for a host tensor."""
        places = self._written_places[op.call]
        return (*op.outputs, *(op.inputs[place] for place in places)) if places else op.outputs


def _written_places(call: Call) -> tuple[int, ...]:
    return tuple(place for place, spec in enumerate(call.inputs) if spec.is_written)
