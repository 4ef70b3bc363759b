"""States that ranks gather of each other: what the others would have sent, which is not there.

An optimizer that is sharded (`ZeroRedundancyOptimizer`) sends each rank's state to the others: they
are assumed to have states of the same form for their parameters. Shards of a tensor are taken to
follow each other along the dimension in which this rank's is a part.
"""

import copy
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.stand_ins import StandIn, apply


def state_of(optimizer: Any, rank: int) -> dict[str, Any]:
    """The state dict of another rank of the group, its parameters numbered as torch does."""
    own = optimizer.optim.state_dict()
    model = next(iter(own["state"].items()), None)
    shapes = [each for group in optimizer.optim.param_groups for each in group["params"]]
    state, groups, number = {}, [], 0
    partition = private.zero_partition(optimizer)[rank]
    for options, theirs in zip(own["param_groups"], partition, strict=True):
        parameters = theirs["params"]
        groups.append({**options, "params": list(range(number, number + len(parameters)))})
        for parameter in parameters:
            if model is not None:
                state[number] = {
                    name: like(value, parameter, shapes[model[0]])
                    for name, value in model[1].items()
                }
            number += 1
    return {"state": state, "param_groups": groups}


def like(value: Any, parameter: Tensor, model: Tensor) -> Any:
    """What an optimizer keeps of a parameter, for another one."""
    if isinstance(value, Tensor) and value.shape == model.shape and value.dim():
        return value.new_zeros(parameter.shape)
    return copy.copy(value)


class Consolidation:
    """`consolidate_state_dict` of a sharded optimizer, whose ranks broadcast in turns."""

    def __init__(self) -> None:
        self.optimizer: Any = None
        """That which gathers at the moment."""

    def within(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def consolidate_state_dict(optimizer: Any, to: int = 0) -> None:
            self.optimizer = optimizer
            try:
                native(optimizer, to)
            finally:
                self.optimizer = None

        return consolidate_state_dict

    def broadcast(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def broadcast_object(
            obj: Any, src_rank: int, group: Any = None, device: Any = "cpu"
        ) -> Any:
            group = dist.group.WORLD if group is None else group
            own_rank = dist.get_rank()
            if src_rank != own_rank and self.optimizer is not None:
                obj = state_of(self.optimizer, dist.get_group_rank(group, src_rank))
            return native(obj, own_rank, group, device)

        return broadcast_object


def of_ranks(gathered: list[Any]) -> list[Any]:
    """The shards of a tensor by rank, of this one's in the place of all."""
    own, size = gathered[0], len(gathered)
    if size == 1 or own is None or any(each != own for each in gathered):
        return gathered
    if len(own.shards_metadata) != 1:
        return gathered
    (shard,) = own.shards_metadata
    place = shard.placement.rank() % size
    whole, lengths, offsets = own.size, shard.shard_sizes, shard.shard_offsets
    cut = [dim for dim, length in enumerate(lengths) if length < whole[dim]]
    if len(cut) != 1:
        return gathered
    dim = cut[0]
    length = offsets[dim] // place if place else lengths[dim]
    ranks = []
    for rank in range(size):
        start = min(rank * length, whole[dim])
        theirs = copy.deepcopy(own) if start < whole[dim] else None
        if theirs is not None:
            theirs.shards_metadata[0].shard_offsets[dim] = start
            theirs.shards_metadata[0].shard_sizes[dim] = min(length, whole[dim] - start)
            theirs.shards_metadata[0].placement = private.shard_placement(
                shard.placement.device(), shard.placement.rank() - place + rank
            )
        ranks.append(theirs)
    return ranks


def stand_ins_of_zero(module: Any) -> list[StandIn]:
    """Once the script has imported that optimizer's module."""
    kind, consolidation = module.ZeroRedundancyOptimizer, Consolidation()
    native = getattr(module, private.BROADCAST_OBJECT)
    return [
        StandIn(kind, CONSOLIDATE, consolidation.within(getattr(kind, CONSOLIDATE))),
        StandIn(module, private.BROADCAST_OBJECT, consolidation.broadcast(native)),
    ]


CONSOLIDATE = "consolidate_state_dict"


def stand_ins_of_fsdp(module: Any) -> list[StandIn]:
    """Once FSDP can gather an optimizer's states: rank 0 tells the others of which parameters."""
    native = getattr(module, private.OPTIMIZER_KEYS)

    def as_first_rank(*args: Any, **kwargs: Any) -> Any:
        with apply([StandIn(dist, "get_rank", lambda group=None: 0)]):
            return native(*args, **kwargs)

    return [StandIn(module, private.OPTIMIZER_KEYS, as_first_rank)]


def stand_ins_of_shards(module: Any) -> list[StandIn]:
    """Once tensors of shards can be made."""
    native = getattr(module, private.SHARDED_METADATA)

    def build_global_metadata(gathered: Any, *args: Any, **kwargs: Any) -> Any:
        return native(of_ranks(list(gathered)), *args, **kwargs)

    return [StandIn(module, private.SHARDED_METADATA, build_global_metadata)]
