"""Which reduction a collective makes: an operator is given it as an object that tells nothing.

Python's calls of process groups are asked on their way; C++ of torch's own (DDP's reducer) sums.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from torchtally.virtual.stand_ins import StandIn

SUM = "SUM"
METHODS = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
)
"""Of a process group: those that reduce."""


class Asked(threading.local):
    """The reduction of the call that this thread is in."""

    reduction: str | None = None


ASKED = Asked()


def reduction() -> str:
    """SUM, AVG, MAX, ...: as `ReduceOp` names it."""
    return ASKED.reduction or SUM


def name_of(arguments: tuple[Any, ...]) -> str:
    """The one among the arguments of a method, by itself or in its options."""
    for argument in arguments:
        operation = getattr(argument, "reduceOp", argument)
        if isinstance(operation, (dist.ReduceOp, dist.ReduceOp.RedOpType)):
            kind = getattr(operation, "op", operation)
            return str(kind).rpartition(".")[2]
    return SUM


def asking(native: Callable[..., Any]) -> Callable[..., Any]:
    def call(group: Any, *args: Any, **kwargs: Any) -> Any:
        before, ASKED.reduction = ASKED.reduction, name_of((*args, *kwargs.values()))
        try:
            return native(group, *args, **kwargs)
        finally:
            ASKED.reduction = before

    return call


def stand_ins() -> list[StandIn]:
    group: Any = dist.ProcessGroup
    return [
        StandIn(group, name, asking(getattr(group, name)))
        for name in METHODS
        if hasattr(group, name)
    ]
