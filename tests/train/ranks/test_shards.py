"""What a rank holds of a tensor, and norms and clipping of tensors in shards."""

import pytest
import torch
from torch import Tensor, nn

from tests.train.ranks.processes import on_ranks
from torchtally.checkpoints.ranks import join_ranks
from torchtally.checkpoints.shards import (
    gather_whole,
    global_norm,
    is_shard,
    local_part,
    part_like,
    reshard,
)
from torchtally.train.step import clip

SHAPES = ((5, 3), (1, 4), (7,))
"""Three ranks hold unequal parts of them, or none."""


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def shards_of(given: list[Tensor]) -> list[Tensor]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    return [distribute_tensor(tensor, mesh, [Shard(0)]) for tensor in given]


def with_gradients(weights: list[Tensor], gradients: list[Tensor]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(weight) for weight in weights]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return parameters


def in_shards() -> dict[str, list[Tensor]]:
    with join_ranks("cpu"):
        cut = shards_of(tensors(0))
        scaled = with_gradients(shards_of(tensors(1)), shards_of(tensors(2)))
        norm = global_norm(param.grad for param in scaled if param.grad is not None)
        clip(scaled, norm.item(), 0.5)
        return {
            "are shards": [torch.tensor([is_shard(shard) for shard in cut])],
            "held": [local_part(shard) for shard in cut],
            "parts": [part_like(one, shard) for one, shard in zip(tensors(0), cut, strict=True)],
            "whole": [gather_whole(shard) for shard in cut],
            "norm": [norm, global_norm(cut)],
            "scaled": [
                gather_whole(parameter.grad) for parameter in scaled if parameter.grad is not None
            ],
        }


def test_norms_and_clipping_of_shards_are_those_of_the_whole() -> None:
    every = on_ranks(in_shards, 3)
    parameters = with_gradients(tensors(1), tensors(2))
    norms = [torch.nn.utils.clip_grad_norm_(parameters, 0.5), global_norm(tensors(0))]
    for answers in every:
        assert bool(answers["are shards"][0].all())
        torch.testing.assert_close(answers["norm"], norms)
        for parameter, scaled in zip(parameters, answers["scaled"], strict=True):
            torch.testing.assert_close(scaled, parameter.grad)


def test_parts_make_up_the_whole() -> None:
    every = on_ranks(in_shards, 3)
    for at, tensor in enumerate(tensors(0)):
        assert torch.equal(torch.cat([answers["held"][at] for answers in every]), tensor)
        for answers in every:
            assert torch.equal(answers["parts"][at], answers["held"][at])
            assert torch.equal(answers["whole"][at], tensor)


@pytest.mark.parametrize(
    "function", [local_part, gather_whole, lambda tensor: part_like(tensor, torch.ones(2))]
)
def test_what_is_no_shard_stays_as_it_is(function: object) -> None:
    tensor = torch.ones(2)
    assert callable(function)
    assert function(tensor) is tensor
    assert not is_shard(tensor)
    reshard(nn.Linear(1, 1))
