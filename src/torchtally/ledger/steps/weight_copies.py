"""Copies of a model's weights that a training keeps beside it: master copies, moving averages.

A *master copy* is what an optimizer steps and the model does not compute with: its values are
copied into the model's weights (ZeRO, Megatron's distributed optimizer, Apex's O2). An *average*
outlives its step, computes nothing in it, and is computed from weights of its shape: an EMA, SWA,
the slow weights of Lookahead, the best weights so far. Neither adds parameters to the model: both
are state of the optimizer, and what brings them up to date is of its phase. What evaluation alone
computes with is an average, too; a target network that each step reads is none.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from torchtally.ledger.steps.flow import Flow
from torchtally.trace import Call, Op, Phase, Role, Trace

COPYING = frozenset(
    ("aten.copy_", "aten._foreach_copy_", "aten._to_copy", "aten.clone", "aten.cat")
)
"""Operators that leave values as they are, but for their dtype."""
PRODUCT = re.compile(r"mm|mv|matmul|linear|convolution|attention")
"""In the name of an operator that multiplies matrices: `aten.addmm`, `aten._scaled_mm`."""
COMPUTING = frozenset({Phase.FORWARD, Phase.RECOMPUTE, Phase.BACKWARD})
UPDATING = frozenset({Phase.FORWARD, Phase.EVALUATION, Phase.OPTIMIZER})


class WeightCopies:
    """The storages of a trace that are copies of weights, and what writes them."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.copies: set[int] = set()
        self.places: set[int] = set()
        """Operators of another phase that are the optimizer's."""
        storages = flow.trace.storages
        parameters = {s.number for s in storages if s.role is Role.PARAMETER}
        weights = {number for number in parameters if storages[number].is_trained}
        if not weights:
            return
        idle = parameters - self._computed_with(parameters)
        self._kept = flow.outliving_storages
        self._others = {
            n
            for n in self._kept - self._read_by_losses()
            if storages[n].role is None or n in idle - weights
        }
        if not idle and not self._others:
            return
        # Those of an optimizer may get their gradients by hand (Megatron's), and require none.
        self._masters, self._weights = idle & self._stepped(), weights - idle
        self._made_by: dict[int, tuple[int, ...]] = {}
        """Of what is computed from weights: the operators that have computed it."""
        self._copied_from: dict[int, int] = {}
        """Of what is copied from a master copy: which one."""
        self._sources = weights | idle
        """Weights, and what is made of them."""
        calls, updating = flow.trace.calls, set(map(id, UPDATING))
        # `zeros_like` reads a shape and no values.
        is_left_out = [call.is_view or call.name.endswith("_like") for call in calls]
        for place, op in enumerate(flow.ops):
            if (
                id(op.phase) in updating
                and not is_left_out[op.call]
                and not self._sources.isdisjoint(op.inputs)
                and op.clock not in flow.differentiated
            ):
                self._follow(place, op)

    def told_apart(self, trace: Trace) -> Trace:
        """The trace with copies of weights as state of the optimizer, and what writes them as of
        its phase.
        """
        if not self.copies:
            return trace
        state, optimizer = Role.OPTIMIZER_STATE, Phase.OPTIMIZER
        storages = tuple(
            replace(storage, role=state) if storage.number in self.copies else storage
            for storage in trace.storages
        )
        ops = tuple(
            replace(op, phase=optimizer) if place in self.places else op
            for place, op in enumerate(trace.ops)
        )
        return replace(trace, ops=ops, storages=storages)

    def _computed_with(self, parameters: set[int]) -> set[int]:
        """What forward and backward passes of steps read, other than to copy or to change it, and
        what they gather from its shards.
        """
        flow, calls, computing = self.flow, self.flow.trace.calls, set(map(id, COMPUTING))
        is_plain = [
            flow.is_view[number] or call.name in COPYING or call.name.startswith("c10d.")
            for number, call in enumerate(calls)
        ]
        is_copy = [call.name in COPYING for call in calls]
        is_gather = [call.name.startswith("c10d.") and "gather" in call.name for call in calls]
        shards = {number: {number} for number in parameters}
        """Parameters that are in a storage, themselves or copied: what is gathered at once is
        concatenated before (ZeRO 3)."""
        read: set[int] = set()
        end = max(flow.trace.step_ends, default=0)
        for place, op in enumerate(flow.ops):
            if op.clock >= end:
                break
            if is_copy[op.call]:
                held = set[int]().union(*(shards.get(n, ()) for n in op.inputs))
                for number in {*flow.written_storages(op)} - parameters if held else ():
                    shards.setdefault(number, set()).update(held)
            is_computing = id(op.phase) in computing
            if is_computing and is_gather[op.call]:
                read = read.union(*(shards.get(n, ()) for n in op.inputs))
            if (is_computing and not is_plain[op.call]) or op.clock in flow.differentiated:
                read.update({*op.inputs} - {*flow.changed_storages(place)})
        return read

    def _stepped(self) -> set[int]:
        """What operators of an optimizer's phase write: a frozen weight is no master copy."""
        flow, optimizer = self.flow, Phase.OPTIMIZER
        stepped: set[int] = set()
        for place, op in enumerate(flow.ops):
            if op.phase is optimizer:
                stepped.update(flow.changed_storages(place))
        return stepped

    def _read_by_losses(self) -> set[int]:
        """What a loss is computed with, other than by copies: the weights that a penalty pulls to
        (L2-SP, FedProx, EWC) are no average.
        """
        flow, calls, computing = self.flow, self.flow.trace.calls, set(map(id, COMPUTING))
        untrained = set(flow.untrained)
        read: set[int] = set()
        for place, op in enumerate(flow.ops):
            if place in untrained or id(op.phase) not in computing or flow.is_view[op.call]:
                continue
            if calls[op.call].name not in COPYING:
                read.update({*op.inputs} - {*flow.changed_storages(place)})
        return read

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
        if self._reads_gradient(op) or not self._is_elementwise(call):
            return
        of_weights = {
            shape: number
            for number, shape in inputs
            if number in self._weights or number in self._made_by
        }
        known = self._weights | self._made_by.keys() | self._others
        if not of_weights or any(n not in known and s in of_weights for n, s in inputs):
            return  # or of data, too
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
                self._sources.add(number)

    def _follow_master(self, place: int, op: Op, written: Sequence[int]) -> None:
        sources = [self._copied_from.get(n, n) for n in op.inputs if n not in written]
        masters = [number for number in sources if number in self._masters]
        if not masters:
            return
        for number in written:
            if number in self._weights and number in self._kept:
                for master in masters:
                    self._take(master, (place,))
        outputs = [number for number in op.outputs if number >= 0]
        self._copied_from.update(dict.fromkeys(outputs, masters[0]))
        self._sources.update(outputs)

    def _is_elementwise(self, call: Call) -> bool:
        """Whether operands have one shape, but for single numbers, and are not multiplied as
        matrices: no product averages weights.
        """
        shapes = {spec.shape for spec in call.inputs if any(size != 1 for size in spec.shape)}
        has_one_shape = len(shapes) < 2 or "._foreach_" in call.name
        return has_one_shape and not PRODUCT.search(call.name)

    def _reads_gradient(self, op: Op) -> bool:
        storages, gradient = self.flow.trace.storages, Role.GRADIENT
        return any(number >= 0 and storages[number].role is gradient for number in op.inputs)

    def _take(self, number: int, places: Iterable[int]) -> None:
        self.copies.add(number)
        ops, optimizer = self.flow.ops, Phase.OPTIMIZER
        self.places.update(place for place in places if ops[place].phase is not optimizer)
