"""Gradient clipping by global norm. Gradients are changed in place."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from torchtally.checkpoints.shards import local_part
from torchtally.errors import UsageError
from torchtally.torch_private import foreach_mul_

NORM_EPS = 1e-6
"""Added to the divisor, as in torch.nn.utils.clip_grad_norm_."""


@torch.no_grad()
def scale_to_norm(parameters: Iterable[Tensor], norm: float, limit: float) -> None:
    """Scale all gradients by min(1, limit / (norm + 1e-6)), given their norm; of sharded gradients
    each rank scales its shard.

    In float32 bitwise equal to torch.nn.utils.clip_grad_norm_, whose order of operations it has.
    """
    one, size = np.float32(1), np.float32(norm) + np.float32(NORM_EPS)
    scale = float(one / size * np.float32(limit))
    gradients = [local_part(param.grad) for param in parameters if param.grad is not None]
    # A NaN norm compares false and scales gradients to NaN, as torch.clamp would.
    if gradients and not scale >= 1:
        foreach_mul_(gradients, scale)


def check_limit(limit: float | None) -> None:
    """Raise UsageError for a limit that is negative or NaN."""
    if limit is not None and not limit >= 0:
        raise UsageError(f"gradient clipping: expected a limit of 0 or more, got {limit}.")
