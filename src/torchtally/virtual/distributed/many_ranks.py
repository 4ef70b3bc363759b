"""What torch does for each rank by itself, done for all at once where they are many.

DDP's first look at its parameters makes a tensor for each rank, `all_gather_object` several: of a
run of 16,384 ranks, nearly all operators. Up to `MOST_LISTED` ranks torch's own code runs. Beyond,
the same bytes are allocated, sent and read, by a few operators.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torchtally import torch_private as private
from torchtally.virtual.stand_ins import StandIn

MOST_LISTED = 64
NUMBER_BYTES, BLOCK_BYTES = 8, 512
"""Of an integer, and of what the caching allocator gives to it."""


def verification(native: Callable[..., None]) -> Callable[..., None]:
    """DDP's check that parameters are alike (`verify_params_across_processes` in reducer.cpp):
    their number from every rank, then shapes and strides from the first.
    """

    def verify(group: Any, parameters: Sequence[Tensor], logger: Any = None) -> None:
        if group.size() <= MOST_LISTED:
            return native(group, parameters, logger)
        device = parameters[0].device
        count = torch.tensor([len(parameters)]).to(device)
        blocks = torch.empty(
            group.size() * (BLOCK_BYTES // NUMBER_BYTES), dtype=torch.long, device=device
        )
        dist.all_gather_into_tensor(blocks[: group.size()], count, group=group)
        del blocks
        numbers = [number for each in parameters for number in (*each.shape, *each.stride())]
        layout = torch.tensor(numbers, dtype=torch.long).to(device)
        dist.broadcast(layout, group=group, group_src=0)
        layout.cpu()
        return None

    return verify


def all_gather_object(native: Callable[..., None]) -> Callable[..., None]:
    """Every rank has what this one has, each an object of its own."""

    def gather(object_list: list[Any], obj: Any, group: Any = None) -> None:
        size = dist.get_world_size(group)
        if size <= MOST_LISTED:
            return native(object_list, obj, group)
        own, length = private.object_tensors(obj, group)
        sizes = torch.zeros(size, dtype=torch.long, device=own.device)
        dist.all_gather_into_tensor(sizes, length, group=group)
        most = int(sizes.max())
        gathered = torch.empty(size * most, dtype=torch.uint8, device=own.device)
        dist.all_gather_into_tensor(gathered, own, group=group)
        gathered.cpu()
        content = pickle.dumps(obj)
        object_list[:] = [pickle.loads(content) for _ in range(size)]
        return None

    return gather


def stand_ins() -> list[StandIn]:
    module: Any = private.distributed_module()
    name = private.parameter_verification()
    objects = all_gather_object(module.all_gather_object)
    return [
        StandIn(*name, verification(getattr(*name))),
        StandIn(module, "all_gather_object", objects),
        StandIn(dist, "all_gather_object", objects),
    ]
