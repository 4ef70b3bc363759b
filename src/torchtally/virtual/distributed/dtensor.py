"""DTensor on the virtual GPU: the shapes of its results, its random numbers, its collectives.

A DTensor dispatches itself: what it does on its shards arrives as operators of plain tensors.
"""

from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.depth import INSIDE
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import virtual_of


def stand_ins(mode: VirtualDispatch) -> list[StandIn]:
    """Once the script has a process group: before, there is no DTensor."""
    propagate = private.dtensor_propagation()
    native = getattr(propagate.owner, propagate.name)

    def propagate_shapes(propagator: Any, schema: Any) -> Any:
        """Shapes on fake tensors, which are not the script's: no operator of theirs is one of the
        run.
        """
        INSIDE.depth += 1
        try:
            with private.without_dispatch_modes():
                return native(propagator, schema)
        finally:
            INSIDE.depth -= 1

    collectives = private.functional_collectives()
    asynchronous = collectives.AsyncCollectiveTensor
    native_wait = asynchronous.trigger_wait

    def trigger_wait(tensor: Any) -> Tensor:
        """A compiler that has taken the dispatch modes off waits for the script's tensors, too."""
        if private.has_dispatch_modes() or virtual_of(tensor.elem) is None:
            return native_wait(tensor)  # type: ignore[no-any-return]
        with mode:
            return native_wait(tensor)  # type: ignore[no-any-return]

    return [
        StandIn(asynchronous, "trigger_wait", trigger_wait),
        StandIn(*propagate, propagate_shapes),
        StandIn(*private.dtensor_shapes(), fake_of),
        StandIn(collectives, private.WRAP_FUNCTIONAL, wrap),
    ]


def fake_of(spec: Any) -> Tensor:
    """A host tensor of a DTensor's whole shape: a build without CUDA makes no other fake ones."""
    meta = spec.tensor_meta
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="cpu")


def wrap(tensor: Tensor) -> Tensor:
    """The result of a functional collective: it waits when it is first used.

    torch's own operator would make a second tensor of the same size on the meta device, where its
    shape function is `empty_like`. One that autograd needs has to be the operator's own; in a graph
    that is being traced it waits at once.
    """
    module = private.functional_collectives()
    if tensor.requires_grad or private.is_tracing_collectives():
        waited: Tensor = module.wait_tensor(tensor)
        return waited
    wrapped: Tensor = module.AsyncCollectiveTensor(tensor)
    return wrapped
