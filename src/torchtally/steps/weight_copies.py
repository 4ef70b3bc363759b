"""Copies of a model's weights that a training keeps beside it: master copies, moving averages.

A *master copy* is what an optimizer steps and the model does not compute with: its values are
copied into the model's weights (ZeRO, Megatron's distributed optimizer, Apex's O2). An *average*
outlives its step, is no parameter of a module that runs, and is computed from weights of its shape:
an EMA, SWA, the slow weights of Lookahead, the best weights so far. Neither adds parameters to the
model: both are state of the optimizer, and what brings them up to date is of its phase.
"""

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from torchtally.steps.flow import Flow
from torchtally.trace import Op, Phase, Role, Trace

COPYING = frozenset(
    ("aten.copy_", "aten._foreach_copy_", "aten._to_copy", "aten.clone", "aten.cat")
)
"""Operators that leave values as they are, but for their dtype."""
COMPUTING = frozenset({Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD})


def with_weight_copies(trace: Trace, flow: Flow) -> Trace:
    """The trace with the role of optimizer state for copies of weights that a training keeps."""
    reading = WeightCopies(flow)
    if not reading.copies:
        return trace
    state, optimizer = Role.OPTIMIZER_STATE, Phase.OPTIMIZER
    storages = tuple(
        replace(storage, role=state) if storage.number in reading.copies else storage
        for storage in trace.storages
    )
    ops = tuple(
        replace(op, phase=optimizer) if place in reading.places else op
        for place, op in enumerate(trace.ops)
    )
    return replace(trace, ops=ops, storages=storages)


class WeightCopies:
    """The storages of a trace that are copies of weights, and what writes them."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.copies: set[int] = set()
        self.places: set[int] = set()
        """Operators of the forward pass that are the optimizer's."""
        storages = flow.trace.storages
        weights = {s.number for s in storages if s.role is Role.PARAMETER and s.is_trained}
        self._kept = flow.outliving_storages
        self._others = {n for n in self._kept if storages[n].role is None}
        masters = weights - self._computed_with(weights)
        if not weights or not (masters or self._others):
            return
        self._masters, self._weights = masters, weights - masters
        self._made_by: dict[int, tuple[int, ...]] = {}
        """Of what is computed from weights: the operators that have computed it."""
        self._copied_from: dict[int, int] = {}
        """Of what is copied from a master copy: which one."""
        for place, op in enumerate(flow.ops):
            if self._may_copy(op):
                self._follow(place, op)

    def _computed_with(self, weights: set[int]) -> set[int]:
        """The weights that a forward or backward pass reads, other than to copy them."""
        flow, calls, computing = self.flow, self.flow.trace.calls, set(map(id, COMPUTING))
        is_plain = [
            flow.is_view[number] or call.name in COPYING or call.name.startswith("c10d.")
            for number, call in enumerate(calls)
        ]
        read: set[int] = set()
        for op in flow.ops:
            is_read = id(op.phase) in computing and not is_plain[op.call]
            if is_read or op.clock in flow.differentiated:
                read.update(op.inputs)
        return weights & read

    def _may_copy(self, op: Op) -> bool:
        call = self.flow.trace.calls[op.call]
        return (
            op.phase in (Phase.FORWARD, Phase.OPTIMIZER)
            and not call.is_view
            and not call.name.endswith("_like")  # reads a shape and no values
            and op.clock not in self.flow.differentiated
        )

    def _follow(self, place: int, op: Op) -> None:
        """Follow weights through an operator, into what it makes and what it writes."""
        call = self.flow.trace.calls[op.call]
        inputs = [
            (number, spec.shape)
            for number, spec in zip(op.inputs, call.inputs, strict=True)
            if number >= 0
        ]
        written = self.flow.changed_storages(place)
        if call.name in COPYING:
            self._follow_master(place, op, written)
        if self._reads_gradient(op):
            return
        of_weights = {
            shape: number
            for number, shape in inputs
            if number in self._weights or number in self._made_by
        }
        if not of_weights:
            return
        made = (place, *(p for n, _ in inputs for p in self._made_by.get(n, ())))
        outputs = [
            (number, spec.shape) for number, spec in zip(op.outputs, call.outputs, strict=True)
        ]
        for number, shape in (*outputs, *((n, s) for n, s in inputs if n in written)):
            if number < 0 or of_weights.get(shape, number) == number:
                continue
            if number in self._others:
                self._take(number, made)
            elif number not in self._weights and number not in self._kept:
                self._made_by[number] = made

    def _follow_master(self, place: int, op: Op, written: Sequence[int]) -> None:
        sources = [self._copied_from.get(n, n) for n in op.inputs if n not in written]
        masters = [number for number in sources if number in self._masters]
        if not masters:
            return
        for number in written:
            if number in self._weights and number in self._kept:
                for master in masters:
                    self._take(master, (place,))
        self._copied_from.update(dict.fromkeys((n for n in op.outputs if n >= 0), masters[0]))

    def _reads_gradient(self, op: Op) -> bool:
        storages, gradient = self.flow.trace.storages, Role.GRADIENT
        return any(number >= 0 and storages[number].role is gradient for number in op.inputs)

    def _take(self, number: int, places: Iterable[int]) -> None:
        self.copies.add(number)
        ops, forward = self.flow.ops, Phase.FORWARD
        self.places.update(place for place in places if ops[place].phase is forward)
