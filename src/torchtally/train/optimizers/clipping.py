"""Gradient clipping by global norm.

Gradients are changed in place. Nothing here synchronizes with a GPU.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from torchtally.errors import UsageError
from torchtally.torch_private import foreach_mul_, foreach_norm
from torchtally.train.shards import gather_whole, local_part

NORM_EPS = 1e-6
"""Added to the divisor, as in torch.nn.utils.clip_grad_norm_."""


@torch.no_grad()
def global_norm(tensors: Iterable[Float[Tensor, "..."]]) -> Float[Tensor, ""]:
    """The Euclidean norm over all elements of the tensors, on the device of the first.

    It is 0 for no tensors, and computed in the tensors' dtype, as by torch.nn.utils.get_total_norm.
    For sharded tensors it is the norm of the full ones; every rank must take part.
    """
    vectors = list(tensors)
    if not vectors:
        return torch.zeros(())
    norms = [norm for alike in _alike(vectors) for norm in foreach_norm(alike, 2.0)]
    norm: Tensor = torch.linalg.vector_norm(
        torch.stack([tensor.to(vectors[0].device) for tensor in norms])
    )
    return gather_whole(norm)


@torch.no_grad()
def clip_by_norm(parameters: Iterable[Float[Tensor, "..."]], limit: float) -> Float[Tensor, ""]:
    """Scale all gradients by min(1, limit / (norm + 1e-6)); returns the norm before clipping.

    The norm stays on its device: read it together with the loss, to synchronize once. An inf or NaN
    norm makes gradients 0 or NaN; `norm.isfinite()` tells, also on the device. Bitwise equal to
    torch's clip_grad_norm_.
    """
    _check_limit(limit)
    gradients = _gradients(parameters)
    norm = global_norm(gradients)
    scale = torch.clamp(limit / (norm + NORM_EPS), max=1.0)
    for alike in _alike([local_part(gradient) for gradient in gradients]):
        foreach_mul_(alike, scale.to(alike[0].device))
    return norm


@torch.no_grad()
def scale_to_norm(parameters: Iterable[Tensor], norm: float, limit: float) -> None:
    """Scale all gradients by min(1, limit / (norm + 1e-6)), given their norm.

    Of sharded gradients each rank scales its shard.
    """
    _check_limit(limit)
    # A NaN norm compares false and scales gradients to NaN, as torch.clamp would.
    scale = limit / (norm + NORM_EPS)
    if scale >= 1:
        return
    for alike in _alike([local_part(gradient) for gradient in _gradients(parameters)]):
        foreach_mul_(alike, scale)


def _gradients(parameters: Iterable[Float[Tensor, "..."]]) -> list[Float[Tensor, "..."]]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _alike(tensors: Sequence[Float[Tensor, "..."]]) -> list[list[Float[Tensor, "..."]]]:
    """Tensors grouped by device and dtype, as the foreach operators require."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return list(groups.values())


def _check_limit(limit: float) -> None:
    if isnan(limit) or limit < 0:
        raise UsageError(f"gradient clipping: expected a limit of 0 or more, got {limit}.")
