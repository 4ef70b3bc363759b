"""One model on many ranks: what each holds of it, and how their gradients come together.

    ddp    every rank holds all weights; gradients are averaged while the backward pass runs
    fsdp   every rank holds a shard of each weight (FSDP2, `fully_shard`); a block's weights are
           gathered for its passes, its gradients averaged and cut into shards again

Both average. The loss is the mean over the targets of all ranks, so each rank's part of it is
multiplied by their number (`step`). Parameters keep the names they have in the model alone.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from torchtally.errors import UsageError
from torchtally.train.config import ParallelConfig
from torchtally.train.precision import PRECISIONS, Precision
from torchtally.train.ranks import ALONE, Ranks
from torchtally.train.shards import reshard

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(model, inputs, targets) to the mean over the targets: those other than -100, if integers."""


def _plain(is_last: bool) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass(frozen=True, slots=True)
class Parallel:
    """What a step has to do for the ranks to come together."""

    ranks: Ranks = ALONE
    is_sharded: bool = False
    """Each rank has a part of every gradient, and not all of it."""
    around_pass: Callable[[bool], AbstractContextManager[object]] = _plain
    """Around a micro-batch's forward and backward pass, told whether it is the step's last."""
    whole_weights: Callable[[], AbstractContextManager[object]] = nullcontext
    """Around what uses weights otherwise than by the loss; every rank enters it."""


BY_ITSELF = Parallel()


@dataclass(frozen=True, slots=True)
class Losses:
    """One loss, in two ways."""

    training: Loss
    """In each micro-batch of a step: a backward pass follows."""
    looking: Loss
    """At any other time. Every rank computes it, or none does."""


def is_sharded(config: ParallelConfig, ranks: Ranks) -> bool:
    """Whether each rank holds a shard of every weight, and none whole."""
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
) -> tuple[Losses, Parallel]:
    """The loss by which the ranks train together, and what goes with it.

    Before an optimizer is made of the model, whose weights fsdp replaces by shards. The model is on
    the device then, or, for fsdp, still on the host: it arrives block by block. Raises UsageError
    for a precision that does not go with shards.
    """
    if not is_sharded(config, ranks):
        loss = torch.compile(loss) if is_compiled else loss
        alone = Losses(loss, loss), BY_ITSELF
        return alone if ranks.size == 1 else _replicate(model, loss, device, ranks)
    if not precision.is_shardable:
        shardable = ", ".join(mode.name for mode in PRECISIONS.values() if mode.is_shardable)
        raise UsageError(
            f"precision: {precision.name} does not work with parallel.strategy fsdp, which takes "
            f"{shardable}. ddp works with every precision."
        )
    return Losses(loss, loss), _shard(model, config, precision, device, ranks, is_compiled)


class _LossOf(nn.Module):
    """A loss as a forward pass, which is what DDP watches."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self.model, inputs, targets)


def _replicate(
    model: nn.Module, loss: Loss, device: torch.device, ranks: Ranks
) -> tuple[Losses, Parallel]:
    # Buffers are tables that no pass writes: the same everywhere from the beginning.
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

    return Losses(loss_of_replica, loss), Parallel(ranks, around_pass=around_pass)


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
        if is_compiled:  # each by itself: a graph of all would hold the gathering, too
            block.compile()
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=config.reshard_after_forward,
            mp_policy=policy,
        )
    fully_shard(model, mesh=mesh, mp_policy=policy)
    assert isinstance(model, FSDPModule)
    if hasattr(model, "loss"):  # the way in is not `forward`, at which fully_shard looks
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
    """The layers that a model is a list of; they are sharded, and compiled, each by itself."""
    return [
        block for child in model.children() if isinstance(child, nn.ModuleList) for block in child
    ]
