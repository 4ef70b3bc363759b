"""Trainings of sharded models: both generations of FSDP, and checkpoints of them."""

import tempfile
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from tests.virtual.distributed.programs import BATCH, WIDTH, Block, Program, blocks, mesh_of, train


def flat(device: str, **options: Any) -> FullyShardedDataParallel:
    """FSDP1: parameters of each block in one flat tensor."""
    here = torch.cuda.current_device() if device == "cuda" else torch.device("cpu")
    return FullyShardedDataParallel(
        blocks(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=here, **options
    )


def flat_plain(device: str) -> None:
    train(flat(device), device)


def flat_original_parameters(device: str) -> None:
    train(flat(device, use_orig_params=True), device)


def flat_mixed(device: str) -> None:
    precision = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
    train(flat(device, mixed_precision=precision), device)


def flat_kept(device: str) -> None:
    """Gathered once a step: shards of gradients and of state alone."""
    train(flat(device, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP), device)


def flat_no_sync(device: str) -> None:
    model = flat(device)
    with model.no_sync():
        model(torch.ones(BATCH, 8, WIDTH, device=device)).sum().backward()
    train(model, device)
    model(torch.ones(BATCH, 8, WIDTH, device=device)).sum().backward()
    model.clip_grad_norm_(1.0)


def flat_state(device: str) -> None:
    """The whole state on each rank, and parts of it."""
    model = flat(device)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        assert len(model.state_dict()) == 3 * 6
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        model.load_state_dict(model.state_dict())


def sharded(device: str, **options: Any) -> Any:
    """FSDP2: each parameter by itself."""
    mesh = mesh_of(device, dist.get_world_size(), names=("dp",))
    model = blocks().to(device)
    for block in model:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fsdp_mixed(device: str) -> None:
    train(sharded(device, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)), device)


def fsdp_kept(device: str) -> None:
    train(sharded(device, reshard_after_forward=False), device)


def fsdp_resharded_to_2(device: str) -> None:
    train(sharded(device, reshard_after_forward=2), device)


def fsdp_prefetch(device: str) -> None:
    model = sharded(device)
    first, second, third = model
    first.set_modules_to_forward_prefetch([second, third])
    third.set_modules_to_backward_prefetch([second, first])
    train(model, device)


def fsdp_accumulation(device: str) -> None:
    model = sharded(device)
    for is_last in (False, True):
        model.set_requires_gradient_sync(is_last)
        model(torch.ones(BATCH, 8, WIDTH, device=device)).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def checkpoint(device: str) -> None:
    """Saved and loaded: every rank its part."""
    model = sharded(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.ones(BATCH, 8, WIDTH, device=device)).sum().backward()
    optimizer.step()
    folders: list[Any] = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folders, 0)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folders[0])
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=folders[0])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)


SHARDS: dict[str, Program] = {
    program.__name__: program
    for program in (
        flat_plain, flat_original_parameters, flat_mixed, flat_kept, flat_no_sync, flat_state,
        fsdp_mixed, fsdp_kept, fsdp_resharded_to_2, fsdp_prefetch, fsdp_accumulation,
    )
}  # fmt: skip
