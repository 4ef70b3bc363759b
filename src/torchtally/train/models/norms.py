"""RMS norm and layer norm.

Axes: `width` features of a token; `tokens` is batch and sequence.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from torchtally.train.models.config import TransformerConfig


def norm_of(config: TransformerConfig) -> nn.Module:
    """The norm of a config; a layer norm has a bias if the config has biases."""
    if config.norm != "layer":
        return rms_norm_of(config, config.width)
    return nn.LayerNorm(config.width, eps=config.norm_eps, bias=config.has_bias)


def rms_norm_of(config: TransformerConfig, width: int) -> "RMSNorm":
    """An RMS norm of this many features, as in this config."""
    return RMSNorm(width, config.norm_eps, 1.0 if config.norm == "rms_plus_one" else 0.0)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * (offset + weight): Zhang and Sennrich 2019, arXiv 1910.07467.

    torch.nn.functional.rms_norm is one kernel on CUDA. On the CPU it is eight operators and three
    times as slow as `_OnHost`, which takes float32 and float64 there.
    """

    def __init__(self, width: int, eps: float, offset: float = 0.0) -> None:
        super().__init__()
        self.eps, self.offset = eps, offset
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, 1 - self.offset)

    def forward(self, x: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        weight = self.weight + self.offset if self.offset else self.weight
        is_wide = x.dtype == self.weight.dtype and x.dtype.itemsize >= 4
        if x.device.type == "cpu" and is_wide and not torch.compiler.is_compiling():
            on_host: Any = _OnHost.apply
            out: Tensor = on_host(x, weight, self.eps)
            return out
        return F.rms_norm(x, weight.shape, weight, self.eps)


class _OnHost(torch.autograd.Function):
    """y = x r w with r = 1 / sqrt(mean(x^2) + eps). Saves x, w and one number per token.

    dw = sum over tokens of g x r, and dx = r g w - x r^3 mean(g w x): both sums are products of the
    matrix g x with a vector.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        r = length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, r)
        out: Tensor = (x * r).mul_(weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight, r = ctx.saved_tensors
        (g,) = grads
        gx = g * x
        grad_x = grad_weight = None
        if ctx.needs_input_grad[1]:
            grad_weight = r.flatten() @ gx.flatten(0, -2)
        if ctx.needs_input_grad[0]:
            mean = (gx @ weight).unsqueeze(-1).div_(x.shape[-1])
            grad_x = torch.mul(g, weight).mul_(r).addcmul_(x, mean.mul_(r**3), value=-1)
        return grad_x, grad_weight, None
