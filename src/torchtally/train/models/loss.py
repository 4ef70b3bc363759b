"""Cross-entropy of a linear head, at once or in chunks of tokens.

Logits are often the largest tensor of a training step: `tokens` times `vocabulary`, and again for
their gradient. In chunks only one chunk's logits exist at a time; its gradients are computed
immediately, so nothing is recomputed and the FLOPs are the same.

Axes: `tokens`, `width`, `vocabulary`; `chunk` is a part of `tokens`.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
"""The target that is ignored: PyTorch's default ignore_index."""


def linear_cross_entropy(
    hidden: Float[Tensor, "tokens width"],
    weight: Float[Tensor, "vocabulary width"],
    targets: Int[Tensor, " tokens"],
    *,
    chunk_tokens: int | None = None,
    cap: float | None = None,
) -> Float[Tensor, ""]:
    """Mean over targets other than -100 of -log softmax(hidden @ weight.T)[target], in nats, of
    logits that `soft_cap` has capped.

    With `chunk_tokens` None all logits exist at once. A number bounds them, by a loop of plain
    operators, which torch.compile, autocast and a trace see; linear_cross_entropy of torch 2.13 is
    one opaque operator that autocast does not cast. A chunked loss has no second derivative.

    Known limit: with bfloat16 weights, the weight gradients of chunks accumulate in bfloat16.
    """
    targets = targets.long()
    if chunk_tokens is None:
        logits = soft_cap(F.linear(hidden, weight), cap)
        return F.cross_entropy(logits, targets, ignore_index=IGNORED)
    chunked: Any = _Chunked.apply
    loss: Tensor = chunked(_as_autocast(hidden), weight, targets, chunk_tokens, cap)
    return loss


def soft_cap(logits: Float[Tensor, "..."], cap: float | None) -> Float[Tensor, "..."]:
    """cap * tanh(logits / cap): Gemma 2, arXiv 2408.00118, section 2."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


def _as_autocast(hidden: Tensor) -> Tensor:
    """The tensor in the dtype that autocast would multiply in."""
    kind = hidden.device.type
    is_cast = torch.is_autocast_enabled(kind) and hidden.dtype != torch.float64
    return hidden.to(torch.get_autocast_dtype(kind)) if is_cast else hidden


class _Chunked(torch.autograd.Function):
    """Computes both gradients with the loss, and saves them for backward instead of logits."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        chunk_tokens: int,
        cap: float | None,
    ) -> Tensor:
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        wide = torch.promote_types(hidden.dtype, torch.float32)
        cast = weight.to(hidden.dtype)
        is_counted = targets != IGNORED
        count = is_counted.sum()
        share = (is_counted.to(wide) / count.clamp(min=1))[:, None]
        loss = hidden.new_zeros((), dtype=wide)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], chunk_tokens):
                part = slice(start, start + chunk_tokens)
                rows = hidden[part]
                logits = soft_cap(F.linear(rows, cast).to(wide), cap)
                # d/dx cap tanh(x / cap) = 1 - tanh(x / cap)^2
                slope = None if cap is None else 1 - (logits / cap) ** 2
                loss += _loss_leaving_gradient(logits, targets[part, None], share[part])
                error = (logits if slope is None else logits * slope).to(hidden.dtype)
                if grad_hidden is not None:
                    torch.mm(error, cast, out=grad_hidden[part])
                if grad_weight is not None:
                    _add_product(grad_weight, error.T, rows)
        ctx.save_for_backward(grad_hidden, grad_weight)
        # The mean over no targets is 0 / 0 = NaN, as in PyTorch.
        return loss * (count / count)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in place, since one may be as large as the head. A second backward pass is
        refused by autograd: the version counters of the saved tensors have changed
        (saved_variable.cpp).
        """
        grad_hidden, grad_weight = (
            None if kept is None else kept.mul_(grads[0]) for kept in ctx.saved_tensors
        )
        return grad_hidden, grad_weight, None, None, None


def _loss_leaving_gradient(
    logits: Float[Tensor, "chunk vocabulary"],
    targets: Int[Tensor, "chunk 1"],
    share: Float[Tensor, "chunk 1"],
) -> Float[Tensor, ""]:
    """The sum of share * cross-entropy; overwrites `logits` with its gradient, share * (softmax -
    one-hot). Ignored tokens have share 0.
    """
    picked = torch.where(targets == IGNORED, 0, targets)
    highest = logits.amax(dim=-1, keepdim=True)
    score = logits.gather(-1, picked)
    total = logits.sub_(highest).exp_().sum(dim=-1, keepdim=True)
    logits.mul_(share / total).scatter_add_(-1, picked, -share)
    return ((total.log() + highest - score) * share).sum()


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a @ b, accumulated in the dtype of total."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total += a @ b
