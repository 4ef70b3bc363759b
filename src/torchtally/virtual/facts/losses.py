"""What a loss is given for a value: numbers that fall, no two of them the same.

A loss is a number of no dimension that follows from several numbers which parameters have made,
by floats all along: the loss of training, of validation under `no_grad`, a penalty. The norm of
a gradient, a count, or an accuracy, which passes a choice or a comparison, is none.

The n-th loss of a run is n ** -0.1: 1, 0.933, 0.896, 0.871, ... As in a training that goes well it
falls ever more slowly, as a power (Kaplan et al., "Scaling Laws for Neural Language Models", 2020,
has exponents of 0.05 to 0.1). What is known of a loss holds for its value. What follows from losses
is computed, unless it would rise where they fall (`1 - dice`): then it is a loss of its own.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import count

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.facts.facts import ANY, Facts
from torchtally.virtual.facts.rules import name_of
from torchtally.virtual.facts.tensors import FALLING, facts_of
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.storage import VirtualStorage, virtual_of

EXPONENT = -0.1


class FallingLosses:
    """Numbers for one run's losses, in the order in which it computes them."""

    def __init__(self) -> None:
        self._places = count(1)

    def ran(self, call: Invocation, outputs: Sequence[Tensor]) -> None:
        """A call whose results have no values has run."""
        if not is_any_trained(call.inputs, call.virtuals):
            return
        written = outputs if not call.operator.is_mutating else call.inputs[:1]
        if not mark_trained(written) or not (has_elements(call) or has_loss(call)):
            return
        for tensor in written:
            if is_loss(tensor):
                self.give(tensor)

    def give(self, tensor: Tensor) -> None:
        """Let a loss of which no value is known have the next one."""
        virtual = virtual_of(tensor)
        if virtual is None or virtual.value is not None or virtual.home.device.type == "cpu":
            return
        facts = facts_of(tensor)
        values.give_value(tensor, torch.tensor(self._next(facts or ANY)))
        virtual.facts, virtual.facts_dtype, virtual.assumption = facts, tensor.dtype, FALLING

    def _next(self, facts: Facts) -> float:
        """Next loss, within the bounds of what is known. Of what is never positive it is negative:
        a likelihood's logarithm rises.
        """
        number: float = next(self._places) ** EXPONENT
        if math.isfinite(facts.lower) and math.isfinite(facts.upper):
            return facts.lower + (facts.upper - facts.lower) * number
        if math.isfinite(facts.upper):
            return facts.upper - number
        return facts.lower + number if math.isfinite(facts.lower) else number


def is_any_trained(tensors: Iterable[Tensor], virtuals: Iterable[VirtualStorage | None]) -> bool:
    """One of the tensors is a parameter, or follows from one by floats alone."""
    for tensor, virtual in zip(tensors, virtuals, strict=True):
        if virtual is None:
            continue
        if virtual.is_trained or virtual.assumption is FALLING or tensor.requires_grad:
            return True
    return False


def has_elements(call: Invocation) -> bool:
    return any(tensor.dim() for tensor in call.inputs)


def has_loss(call: Invocation) -> bool:
    return any(is_falling(virtual) for virtual in call.virtuals)


def is_falling(virtual: VirtualStorage | None) -> bool:
    return virtual is not None and virtual.assumption is FALLING


def turns(call: Invocation) -> bool:
    """Its result does not fall with the losses that it is made of."""
    name = name_of(call)
    if name not in TURNING or not has_loss(call) or has_elements(call):
        return False
    number = call.args[1] if len(call.args) > 1 else -1
    if not isinstance(number, Tensor):
        return name == "rsub" or (name != "sub" and number < 0)
    # `before - loss` is how much the loss fell, unless gradients flow through it.
    is_differentiated = torch.is_grad_enabled() and any(each.requires_grad for each in call.inputs)
    return name in ("sub", "rsub", "div") and is_differentiated and is_falling(virtual_of(number))


TURNING = ("neg", "mul", "div", "sub", "rsub")


def mark_trained(tensors: Iterable[Tensor]) -> bool:
    """Say of results that they follow from parameters; False of gradients, which do not count."""
    if private.current_autograd_node() is not None:
        return False
    for tensor in tensors:
        virtual = virtual_of(tensor)
        if virtual is not None and tensor.dtype.is_floating_point:
            virtual.is_trained = True
    return True


def is_loss(tensor: Tensor) -> bool:
    """A number that follows from parameters, by whatever made it."""
    virtual = virtual_of(tensor)
    return (
        virtual is not None
        and tensor.dim() == 0
        and tensor.dtype.is_floating_point
        and (virtual.is_trained or tensor.requires_grad)
    )
