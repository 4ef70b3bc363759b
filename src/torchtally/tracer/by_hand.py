"""Training steps without a torch optimizer: weights that a script updates by hand.

    p -= lr * p.grad                        in place, under no_grad
    p.data.add_(p.grad, alpha=-lr)          in place, on the data
    w = (w - lr * g).requires_grad_()       functional: a new tensor takes the weight's place

What is computed from gradients, alone or with weights and tensors of their shape, is of the
optimizer's phase. A step ends with the last update before a forward pass reads weights again.

Known limitation: a forward pass that builds no graph, is in no module and combines an updated
weight with a tensor of the weight's own shape is taken for a part of the update.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from torchtally.trace import Phase, Role
from torchtally.virtual.invocation import HOST_NUMBER, Invocation
from torchtally.virtual.storage import virtual_of
from torchtally.virtual.value_keeper import inside_backward


def never(tick: int) -> None:
    """No one counts the steps."""


class HandUpdates:
    """Follows gradients from backward passes into weights, by the numbers of storages."""

    def __init__(
        self, roles: dict[int, Role], trained: set[int], born: Callable[[int], int]
    ) -> None:
        self.is_active = True
        """Whether the script has no torch optimizer, whose steps count otherwise."""
        self.end_step: Callable[[int], None] = never
        """Called with the tick at which a step has ended, when the next one begins."""
        self._roles = roles
        self._trained = trained
        self._born = born
        # Numbers are never given twice: what dies while an optimizer exists may stay in these sets.
        self._leaves: set[int] = set()
        """Require grad: inputs, or weights should they be updated."""
        self._gradients: set[int] = set()
        """Made by the backward passes since the last step ended."""
        self._first_gradient = 0
        self._derived: set[int] = set()
        """Computed from gradients outside of backward passes."""
        self._replaced: dict[int, int] = {}
        """Computed from a weight (the value) and gradients: may take its place."""
        self._updated: int | None = None
        """The tick after the last update since the last step ended."""
        self._replaced_until: int | None = None
        self._is_functional = False
        """A new tensor has taken a weight's place before."""

    def operator_ran(
        self, invocation: Invocation, outputs: Sequence[Tensor], tick: int, *, is_in_module: bool
    ) -> None:
        """Told of operators by a recorder that keeps none: of those below the engine, and of the
        others.
        """
        if not self.is_active:
            return
        virtuals = map(virtual_of, outputs)
        numbers = [HOST_NUMBER if virtual is None else virtual.number for virtual in virtuals]
        invocation.number_inputs()
        if inside_backward():
            self.backward_ran(numbers, tick)
        else:
            self.phase(invocation, numbers, tick, is_in_module=is_in_module)

    def backward_ran(self, outputs: Sequence[int], tick: int) -> None:
        if not self.is_active:
            return
        if not self._gradients:
            self._first_gradient = tick
        # Views of what the forward pass saved are no gradients.
        self._gradients.update(
            number
            for number in outputs
            if number >= 0
            and (self._born(number) == tick or self._roles.get(number) is Role.GRADIENT)
        )

    def storage_died(self, number: int) -> None:
        if not self.is_active:
            return
        self._leaves.discard(number)
        self._gradients.discard(number)
        self._derived.discard(number)
        self._replaced.pop(number, None)

    def phase(
        self, invocation: Invocation, outputs: Sequence[int], tick: int, *, is_in_module: bool
    ) -> Phase:
        """Phase of an operator outside of backward passes. May end a step before it."""
        # `w.data` and `w.detach()` dispatch a detach with gradients enabled: no pass reads w yet.
        if not self.is_active or invocation.operator.name == "aten.detach":
            return Phase.FORWARD
        builds_graph = torch.is_grad_enabled() and self._leaves_read(invocation)
        if not (self._gradients or self._derived or self._updated):
            return Phase.FORWARD
        if is_in_module or self._is_forward(invocation, builds_graph=builds_graph):
            self._weights_read(invocation.numbers)
            return Phase.FORWARD
        numbers = {number for number in invocation.numbers if number >= 0}
        changed = changed_numbers(invocation)
        weights = set(filter(self._is_weight, changed))
        if weights and self._gradients:
            for number in weights:
                self._take_for_weight(number)
            self._updated = tick + 1
        elif numbers.isdisjoint(self._derived) and numbers.isdisjoint(self._gradients):
            return Phase.FORWARD
        else:
            self._note_computed(numbers, changed, outputs, tick)
        for number in numbers & self._gradients:
            self._roles.setdefault(number, Role.GRADIENT)
        return Phase.OPTIMIZER

    def finish(self) -> None:
        """The script is over, or has made an optimizer: its last update ends a step."""
        if not self.is_active:
            return
        if self._updated is None and self._is_functional:
            self._updated = self._replaced_until
        if self._updated is not None:
            self._close(self._updated)

    def _leaves_read(self, invocation: Invocation) -> bool:
        """Whether a graph is built; takes note of its leaves."""
        requires_grad = False
        for tensor, number in zip(invocation.inputs, invocation.numbers, strict=True):
            if tensor.requires_grad:
                requires_grad = True
                if tensor.is_leaf and number >= 0:
                    self._leaves.add(number)
        return requires_grad

    def _is_forward(self, invocation: Invocation, *, builds_graph: bool) -> bool:
        """It builds a graph, other than for `w - lr * w.grad`; or it reads data: a tensor of
        another shape than the weights it is with.
        """
        pairs = list(zip(invocation.inputs, invocation.numbers, strict=True))
        if builds_graph and not any(
            not tensor.requires_grad and (number in self._gradients or number in self._derived)
            for tensor, number in pairs
        ):
            return True
        shapes = {tensor.shape for tensor, number in pairs if self._is_of_update(number)}
        return any(
            number >= 0
            and tensor.numel() > 1
            and tensor.shape not in shapes
            and not self._is_of_update(number)
            for tensor, number in pairs
        )

    def _is_of_update(self, number: int) -> bool:
        """A weight, a gradient, or computed from them."""
        return (
            number in self._gradients
            or number in self._derived
            or number in self._leaves
            or self._roles.get(number) in (Role.PARAMETER, Role.OPTIMIZER_STATE, Role.GRADIENT)
        )

    def _is_weight(self, number: int) -> bool:
        return number in self._leaves or self._roles.get(number) is Role.PARAMETER

    def _take_for_weight(self, number: int) -> None:
        if self._roles.setdefault(number, Role.PARAMETER) is Role.PARAMETER:
            self._trained.add(number)

    def _note_computed(
        self, numbers: set[int], changed: Sequence[int], outputs: Sequence[int], tick: int
    ) -> None:
        """Notes what is computed from gradients: a temporary, optimizer state, or what will take a
        weight's place.
        """
        derived = {n for n in (*outputs, *changed) if n >= 0 and n not in self._gradients}
        self._derived |= derived
        for number in derived.intersection(changed):
            if self._born(number) < self._first_gradient:
                self._roles.setdefault(number, Role.OPTIMIZER_STATE)
        others = numbers - self._gradients - self._derived
        weights = [*others, *(self._replaced[n] for n in numbers if n in self._replaced)]
        if weights and not changed:
            self._replaced.update(dict.fromkeys(derived, weights[0]))
            self._replaced_until = tick + 1

    def _weights_read(self, numbers: Sequence[int]) -> None:
        """Told that a forward pass reads weights: the updates of a step are over."""
        for number in numbers:
            if number in self._replaced:
                self._take_for_weight(self._replaced.pop(number))
                self._take_for_weight(number)
                self._derived.discard(number)
                self._updated, self._is_functional = self._replaced_until, True
        if self._updated is not None and any(map(self._is_weight, numbers)):
            self._close(self._updated)

    def _close(self, tick: int) -> None:
        self._gradients.clear()
        self._leaves.clear()
        self._updated = self._replaced_until = None
        self.end_step(tick)


def changed_numbers(invocation: Invocation) -> list[int]:
    """Storages that the operator writes to in place."""
    if not invocation.operator.is_mutating:
        return []
    written = invocation.operator.written
    named = zip(invocation.named_inputs, invocation.numbers, strict=True)
    return [number for (name, _), number in named if name in written and number >= 0]
