"""Symmetric memory: kernels that read other ranks' memory.

Products fused with a collective (asynchronous tensor parallelism) run as torch's own fallback, the
collective and then the product: the same FLOPs and bytes, one after the other. What a script does
itself with memory of other ranks is refused: they are not there.
"""

from typing import Any

import torch

from torchtally import torch_private as private
from torchtally.errors import UnsupportedError
from torchtally.virtual.dispatch import SPECIAL, Handler, VirtualDispatch
from torchtally.virtual.invocation import Invocation
from torchtally.virtual.stand_ins import StandIn

NOTE = (
    "collectives fused with products ran one after the other: on a real GPU each hides most of "
    "its collective behind its product"
)


def fallback(name: str) -> Handler:
    """The collective and the product, as operators of their own."""

    def run(mode: VirtualDispatch, call: Invocation) -> Any:
        mode.observer.note(NOTE)
        composed = getattr(private.symmetric_memory(), private.FUSED_COLLECTIVES[name])
        with mode:
            return composed(*call.args, **call.kwargs)

    return run


def register() -> None:
    """Enter the handlers of the fused operators that this torch has."""
    private.symmetric_memory()  # it defines them
    for name in private.FUSED_COLLECTIVES:
        if hasattr(torch.ops.symm_mem, name):
            SPECIAL[getattr(torch.ops.symm_mem, name).default] = fallback(name)


def stand_ins() -> list[StandIn]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(
            "tally does not simulate tensors in symmetric memory: kernels read them in the memory "
            "of other ranks, which are not there.\n"
            "Use collectives of torch.distributed: all_reduce, all_gather_into_tensor."
        )

    module = private.symmetric_memory()
    return [StandIn(module, name, refuse) for name in ("empty", "rendezvous")]
