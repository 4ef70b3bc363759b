"""flash_attn.losses.cross_entropy."""

from typing import Any

from torch import Tensor, nn

from torchtally.libraries.operators.layers import CrossEntropy


class CrossEntropyLoss(nn.Module):
    def __init__(
        self, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
        logit_scale: float = 1.0, lse_square_scale: float = 0.0, inplace_backward: bool = False,
        process_group: Any = None, return_z_loss: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.ignore_index, self.reduction = ignore_index, reduction
        self.inplace_backward = inplace_backward

    def forward(self, input: Tensor, target: Tensor, precomputed_lse: Any = None) -> Tensor:
        losses: Tensor = CrossEntropy.apply(input, target, self.inplace_backward)  # type: ignore[no-untyped-call]
        if self.reduction == "mean":
            return losses.sum() / (target != self.ignore_index).sum()
        return losses.sum() if self.reduction == "sum" else losses
