"""One model on many ranks: what each rank holds, and how gradients are combined.

    ddp    every rank holds all weights; gradients are averaged while the backward pass runs
    fsdp   every rank holds a shard of each weight (FSDP2, `fully_shard`); a block's weights are
           gathered for its passes, its gradients averaged and scattered to the shards

Both average gradients. The loss is the mean over the targets of all ranks, so each rank's part is
multiplied by the number of ranks (`step`). Parameters keep the names of the plain model.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.checkpoints.ranks import ALONE, Ranks
from torchtally.checkpoints.shards import reshard
from torchtally.errors import UsageError
from torchtally.train.config import ParallelConfig
from torchtally.train.precision import PRECISIONS, Precision

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, inputs, targets) to the mean over all targets, except -100 among integers."""


def _plain(is_last: bool) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Parallel:
    """What a step does for several ranks."""

    ranks: Ranks = ALONE
    is_sharded: bool = False
    """Whether each rank has only a shard of every gradient."""
    around_pass: Callable[[bool], AbstractContextManager[object]] = _plain
    """The context of a micro-batch's passes, given whether it is the last of the step."""
    whole_weights: Callable[[], AbstractContextManager[object]] = nullcontext
    """The context of uses of the weights outside of the loss; every rank enters it."""


BY_ITSELF = Parallel()


def is_sharded(config: ParallelConfig, ranks: Ranks) -> bool:
    """Whether each rank holds only a shard of every weight."""
    return ranks.size > 1 and config.strategy == "fsdp"


def parallel(
    model: nn.Module,
    loss: Loss,
    config: ParallelConfig,
    *,
    precision: Precision,
    device: torch.device,
    ranks: Ranks = ALONE,
    is_compiled: bool = False,
) -> tuple[Loss, Loss, Parallel]:
    """The loss for training, with a backward pass, that without one, which every rank must compute,
    and the contexts around them.

    Call it before building the optimizer, since fsdp replaces weights by shards. The model is on
    the device, or for fsdp still on the host: it is moved block by block. Raises UsageError for a
    precision that does not support shards.
    """
    if not is_sharded(config, ranks):
        loss = torch.compile(loss) if is_compiled else loss
        if ranks.size == 1:
            return loss, loss, BY_ITSELF
        return _replicate(model, loss, device, ranks)
    if not precision.is_shardable:
        shardable = ", ".join(mode.name for mode in PRECISIONS.values() if mode.is_shardable)
        raise UsageError(
            f"precision: {precision.name} does not work with parallel.strategy fsdp, which takes "
            f"{shardable}. ddp works with every precision."
        )
    return loss, loss, _shard(model, config, precision, device, ranks, is_compiled)


class _LossOf(nn.Module):
    """The loss as a module's forward pass, which DDP requires."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self.model, inputs, targets)


def _replicate(
    model: nn.Module, loss: Loss, device: torch.device, ranks: Ranks
) -> tuple[Loss, Loss, Parallel]:
    # Buffers are constant tables, identical on all ranks: no need to broadcast them.
    replicate: Any = nn.parallel.DistributedDataParallel
    has_new_name = "forward_sync_buffers" in signature(replicate).parameters  # torch 2.13
    replica: Any = replicate(
        _LossOf(model, loss),
        device_ids=None if device.type == "cpu" else [device],
        gradient_as_bucket_view=True,
        **{"forward_sync_buffers" if has_new_name else "broadcast_buffers": False},
    )

    def loss_of_replica(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        value: Tensor = replica(inputs, targets)
        return value

    def around_pass(is_last: bool) -> AbstractContextManager[object]:
        is_accumulating: AbstractContextManager[object] = replica.no_sync()
        return nullcontext() if is_last else is_accumulating

    return loss_of_replica, loss, Parallel(ranks, around_pass=around_pass)


def _shard(
    model: nn.Module,
    config: ParallelConfig,
    precision: Precision,
    device: torch.device,
    ranks: Ranks,
    is_compiled: bool,
) -> Parallel:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(device.type, (ranks.size,))
    policy = MixedPrecisionPolicy()
    if precision.autocast_dtype is not None:
        policy = MixedPrecisionPolicy(
            param_dtype=precision.autocast_dtype, reduce_dtype=torch.float32
        )
    for block in blocks(model):
        if is_compiled:  # per block: a whole graph would include the gathering
            block.compile()
        fully_shard(
            block, mesh=mesh, reshard_after_forward=config.reshard_after_forward, mp_policy=policy
        )
    fully_shard(model, mesh=mesh, mp_policy=policy)
    assert isinstance(model, FSDPModule)
    if hasattr(model, "loss"):  # fully_shard hooks `forward`; ours is called by `loss`
        register_fsdp_forward_method(model, "loss")
    root: Any = model

    @contextmanager
    def around_pass(is_last: bool) -> Iterator[None]:
        root.set_requires_gradient_sync(is_last)
        yield

    @contextmanager
    def whole_weights() -> Iterator[None]:
        root.unshard()
        try:
            yield
        finally:
            reshard(model)

    return Parallel(ranks, True, around_pass, whole_weights)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model, which are sharded and compiled individually."""
    return [
        block for child in model.children() if isinstance(child, nn.ModuleList) for block in child
    ]
