"""Gradients kept within bounds: all of them by their common norm, or each value by itself.

Gradients are changed in place. Nothing here waits for a GPU, unless an error is asked for.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import isnan

import torch
from jaxtyping import Float
from torch import Tensor

from torchtally.errors import UsageError
from torchtally.torch_private import (
    foreach_clamp_max_,
    foreach_clamp_min_,
    foreach_mul_,
    foreach_norm,
)
from torchtally.train.shards import gather_whole, local_part

NORM_EPS = 1e-6
"""Added to the norm that is divided by: torch.nn.utils.clip_grad_norm_."""


@torch.no_grad()
def global_norm(tensors: Iterable[Float[Tensor, "..."]]) -> Float[Tensor, ""]:
    """The Euclidean norm of all tensors' elements as of one vector, on the first one's device.

    The norm of no tensors is 0. Computed in the tensors' dtype, as torch.nn.utils.get_total_norm.
    Of sharded tensors it is that of the whole ones, on every rank, all of which ask for it.
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
def clip_by_norm(
    parameters: Iterable[Float[Tensor, "..."]], limit: float, *, error_if_nonfinite: bool = False
) -> Float[Tensor, ""]:
    """Scales all gradients by min(1, limit / (norm + 1e-6)); returns the norm before that.

    The norm stays on its device: read it when the step's loss is read, and nothing waits twice. A
    norm that is inf or nan makes gradients 0 or nan; `norm.isfinite()` tells, and stays on the
    device too. With `error_if_nonfinite` the host waits for the norm, and FloatingPointError says
    which gradients are not finite; they are left as they were. Bitwise torch's clip_grad_norm_.
    """
    _check_limit(limit)
    gradients = _gradients(parameters)
    norm = global_norm(gradients)
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise FloatingPointError(_nonfinite_text(gradients))
    scale = torch.clamp(limit / (norm + NORM_EPS), max=1.0)
    for alike in _alike([local_part(gradient) for gradient in gradients]):
        foreach_mul_(alike, scale.to(alike[0].device))
    return norm


@torch.no_grad()
def scale_to_norm(parameters: Iterable[Tensor], norm: float, limit: float) -> None:
    """Scales all gradients by min(1, limit / (norm + 1e-6)), `norm` being theirs and known.

    Gradients that are shards are scaled as what each rank holds of them.
    """
    _check_limit(limit)
    # As `clamp` has it, nan stays nan.
    scale = limit / (norm + NORM_EPS)
    if scale >= 1:
        return
    for alike in _alike([local_part(gradient) for gradient in _gradients(parameters)]):
        foreach_mul_(alike, scale)


@torch.no_grad()
def clip_by_value(parameters: Iterable[Float[Tensor, "..."]], limit: float) -> None:
    """Brings every element of every gradient into [-limit, limit]; nan stays nan."""
    _check_limit(limit)
    for alike in _alike(_gradients(parameters)):
        foreach_clamp_min_(alike, -limit)
        foreach_clamp_max_(alike, limit)


def _gradients(parameters: Iterable[Float[Tensor, "..."]]) -> list[Float[Tensor, "..."]]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _alike(tensors: Sequence[Float[Tensor, "..."]]) -> list[list[Float[Tensor, "..."]]]:
    """By device and dtype: foreach takes lists of one kind."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        groups[tensor.device, tensor.dtype].append(tensor)
    return list(groups.values())


def _check_limit(limit: float) -> None:
    if isnan(limit) or limit < 0:
        raise UsageError(f"Gradients are to be clipped at {limit}. The limit must be 0 or more.")


def _nonfinite_text(gradients: Sequence[Float[Tensor, "..."]]) -> str:
    wrong = [at for at, gradient in enumerate(gradients) if not bool(gradient.isfinite().all())]
    if not wrong:
        return "The gradients' norm overflows their dtype, though each of them is finite."
    shapes = ", ".join(f"number {at} of shape {tuple(gradients[at].shape)}" for at in wrong[:5])
    more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
    return f"{len(wrong)} of {len(gradients)} gradients are not finite: {shapes}{more}."
