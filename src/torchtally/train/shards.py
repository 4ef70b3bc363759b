"""Weights that FSDP2 has cut into shards: `DTensor`s, of which each rank holds one part.

Known by their methods and not by their class, since importing that takes a second, which a training
alone has no use for.
"""

from typing import Any

from torch import Tensor, nn


def is_shard(tensor: Tensor) -> bool:
    """Whether this rank holds only a part of it."""
    return hasattr(tensor, "to_local")


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds: its part of a sharded tensor, in the same memory; any other whole."""
    if not is_shard(tensor):
        return tensor
    shard: Any = tensor
    part: Tensor = shard.to_local()
    return part


def gather_whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered from all ranks, each of which asks for it; any other as it is."""
    if not is_shard(tensor):
        return tensor
    shard: Any = tensor
    gathered: Tensor = shard.full_tensor()
    return gathered


def part_like(tensor: Tensor, shard: Tensor) -> Tensor:
    """What this rank holds of a whole tensor that is cut as `shard` is; all of it, for no shard."""
    if not is_shard(shard):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    like: Any = shard
    everywhere = [Replicate()] * like.device_mesh.ndim
    replicated = DTensor.from_local(tensor, like.device_mesh, everywhere, run_check=False)
    return local_part(replicated.redistribute(placements=like.placements))


def reshard(model: nn.Module) -> None:
    """Lets go of whole weights that a forward pass without a backward pass has gathered.

    Until then the model's parameters are not the shards that the optimizer knows.
    """
    for module in model.modules():
        if hasattr(module, "reshard"):
            resharded: Any = module
            resharded.reshard()
