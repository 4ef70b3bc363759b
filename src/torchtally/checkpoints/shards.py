"""Weights sharded by FSDP2: `DTensor`s, of which each rank holds one shard.

They are recognised by their methods rather than their class, whose import takes a second.
"""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


def is_shard(tensor: Tensor) -> bool:
    """Whether this rank holds only a shard of the tensor."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """The shard of this rank, sharing memory; a tensor that is not sharded is returned as it is."""
    if not is_shard(tensor):
        return tensor
    shard: Any = tensor
    part: Tensor = shard.to_local()
    return part


def gather_whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered from all ranks, all of which must call this; others as they are."""
    if not is_shard(tensor):
        return tensor
    shard: Any = tensor
    gathered: Tensor = shard.full_tensor()
    return gathered


def part_like(tensor: Tensor, shard: Tensor) -> Tensor:
    """The part for this rank of a full tensor sharded like `shard`; all of it if that is whole."""
    if not is_shard(shard):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    like: Any = shard
    everywhere = [Replicate()] * like.device_mesh.ndim
    replicated = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
    return local_part(replicated.redistribute(placements=like.placements))


def reshard(model: nn.Module) -> None:
    """Free weights gathered by a forward pass without a backward pass.

    Until then the model's parameters are not the shards that the optimizer updates.
    """
    for module in model.modules():
        if hasattr(module, "reshard"):
            resharded: Any = module
            resharded.reshard()


@torch.no_grad()
def global_norm(tensors: Iterable[Float[Tensor, "..."]]) -> Float[Tensor, ""]:
    """The Euclidean norm over all elements of the tensors, on the device of the first.

    It is 0 for no tensors, and computed in the tensors' dtype. For sharded tensors it is the norm
    of the full ones; every rank must take part.
    """
    return gather_whole(nn.utils.get_total_norm(list(tensors)))
