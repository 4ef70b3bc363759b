"""Fused layers around attention: rotary embeddings, cross-entropy.

N: tokens.  V: vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from torchtally.libraries.operators.registry import define


@define("flash_attn", "rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor")
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return torch.empty_like(x)


@define("flash_attn", "rotary_(Tensor(a!) x, Tensor cos, Tensor sin) -> Tensor(a!)")
def rotary_in_place(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x


@define("flash_attn", "cross_entropy(Tensor logits, Tensor labels) -> (Tensor, Tensor)")
def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, log-sum-exp) of each token, both in float32."""
    loss = logits.new_empty(logits.shape[:1], dtype=torch.float32)
    return loss, torch.empty_like(loss)


@define(
    "flash_attn",
    "cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor lse, Tensor labels) -> Tensor",
)
def cross_entropy_backward(
    grad_loss: Tensor, logits: Tensor, lse: Tensor, labels: Tensor
) -> Tensor:
    return torch.empty_like(logits)


@define(
    "flash_attn",
    "cross_entropy_backward_(Tensor(a!) logits, Tensor grad_loss, Tensor lse, Tensor labels) "
    "-> Tensor(a!)",
)
def cross_entropy_backward_in_place(
    logits: Tensor, grad_loss: Tensor, lse: Tensor, labels: Tensor
) -> Tensor:
    return logits


@define("transformer_engine", "online_softmax(Tensor logits, Tensor target) -> Tensor")
def online_softmax(logits: Tensor, target: Tensor) -> Tensor:
    """Maximum, sum of exponentials and target's logit of each token, in float32."""
    return logits.new_empty(3 * target.numel(), dtype=torch.float32)


@define(
    "transformer_engine",
    "cross_entropy_and_gradient(Tensor(a!) logits, Tensor target, Tensor statistics) -> Tensor",
)
def cross_entropy_and_gradient(logits: Tensor, target: Tensor, statistics: Tensor) -> Tensor:
    """The loss of each token in float32; the gradient is written over the logits."""
    return logits.new_empty(target.numel(), dtype=torch.float32)


@define("transformer_engine", "scale_rows_(Tensor(a!) x, Tensor factors) -> Tensor(a!)")
def scale_rows(x: Tensor, factors: Tensor) -> Tensor:
    """Rows times a factor each, or one for all."""
    return x


class RotaryFunction(torch.autograd.Function):
    """Keeps the cosines and sines alone: backward turns the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, inplace: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.inplace = inplace
        if inplace:
            ctx.mark_dirty(x)
            torch.ops.flash_attn.rotary_(x, cos, sin)
            return x
        result: Tensor = torch.ops.flash_attn.rotary(x, cos, sin)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return torch.ops.flash_attn.rotary(grad, cos, sin), None, None, None


class CrossEntropy(torch.autograd.Function):
    """Keeps the logits, whose memory the gradient may take."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, inplace: bool) -> Tensor:
        loss, lse = torch.ops.flash_attn.cross_entropy(logits, labels)
        ctx.save_for_backward(logits, lse, labels)
        ctx.inplace = inplace
        result: Tensor = loss
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        logits, lse, labels = ctx.saved_tensors
        operators = torch.ops.flash_attn
        if ctx.inplace:
            operators.cross_entropy_backward_(logits, grad, lse, labels)
            return logits, None, None
        return operators.cross_entropy_backward(grad, logits, lse, labels), None, None
