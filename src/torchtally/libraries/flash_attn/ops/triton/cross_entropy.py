"""flash_attn.ops.triton.cross_entropy."""

from typing import Any

from torch import Tensor

from torchtally.libraries.operators.layers import CrossEntropy


def cross_entropy_loss(
    logits: Tensor, labels: Tensor, precomputed_lse: Tensor | None = None,
    label_smoothing: float = 0.0, logit_scale: float = 1.0, lse_square_scale: float = 0.0,
    ignore_index: int = -100, inplace_backward: bool = False, process_group: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(losses, the part of them that is of `lse_square_scale`)."""
    losses: Tensor = CrossEntropy.apply(logits, labels, inplace_backward)  # type: ignore[no-untyped-call]
    return losses, losses.detach().new_zeros(losses.shape)
