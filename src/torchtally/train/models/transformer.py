"""A decoder: token ids in, logits of the next token out.

Axes: `batch`, `sequence`, `width`, `vocabulary`.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torchtally.errors import UsageError, check_choice
from torchtally.plan.flops import Recompute
from torchtally.train.models.attention import CausalAttention, window_mask
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.feed_forward import DecoderFeedForward
from torchtally.train.models.linear import Embedding, Linear
from torchtally.train.models.loss import linear_cross_entropy
from torchtally.train.models.norms import norm_of
from torchtally.train.models.past import Past
from torchtally.train.models.rotary import Rotary


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), and x + feed_forward(norm(x)) of that."""

    def __init__(self, config: TransformerConfig, recompute: Recompute) -> None:
        super().__init__()
        # 2 L outputs add up in the residual stream: each is scaled by 1 / sqrt(2 L), as in GPT-2.
        gain = 1 / math.sqrt(2 * config.layers)
        self.attention_norm = norm_of(config)
        self.attention = CausalAttention(
            config, gain=gain, recomputes=recompute is Recompute.SELECTIVE
        )
        self.feed_forward_norm = norm_of(config)
        self.feed_forward = DecoderFeedForward(config, gain=gain)
        self.dropout = config.dropout

    def forward(
        self,
        x: Float[Tensor, "batch sequence width"],
        rotary: Rotary | None,
        mask: Bool[Tensor, "sequence sequence"] | None = None,
        past: Past | None = None,
    ) -> Float[Tensor, "batch sequence width"]:
        x = x + self._drop_out(self.attention(self.attention_norm(x), rotary, mask, past))
        return x + self._drop_out(self.feed_forward(self.feed_forward_norm(x)))

    def _drop_out(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout else x


class Transformer(nn.Module):
    """The decoder of a config.

    Matrices are initialised as in `Linear`, those that write to the residual stream with a gain of
    1 / sqrt(2 layers). Build a large model on `torch.device("meta")`, then `to_empty(device=...)`
    and `reset_parameters()`, or `huggingface.read_weights`.

    `recompute` is activation recomputation, as in the closed forms: "full" keeps only each block's
    input; "selective" recomputes what is between attention's operands and its result, which pays
    where no fused kernel is used.
    """

    def __init__(
        self, config: TransformerConfig, *, recompute: Recompute | str = Recompute.NONE
    ) -> None:
        super().__init__()
        self.config = config
        check_choice("recompute: unknown value", recompute, list(Recompute))
        self.recompute = Recompute(recompute)
        self.embedding = Embedding(config.vocabulary, config.width)
        is_rotary = config.positions == "rope"
        self.positions = None if is_rotary else Embedding(config.context, config.width)
        self.rotary = _rotary(config) if is_rotary else None
        self.blocks = nn.ModuleList(
            DecoderBlock(config, self.recompute) for _ in range(config.layers)
        )
        self.norm = norm_of(config)
        self.head = None if config.is_tied else Linear(config.width, config.vocabulary)

    @property
    def head_weight(self) -> Float[Tensor, "vocabulary width"]:
        return self.embedding.weight if self.head is None else self.head.weight

    def reset_parameters(self) -> None:
        """Initialise all values, for instance after `to_empty`."""
        for module in self.modules():
            reset: Any = getattr(module, "reset_parameters", None)
            if module is not self and reset is not None:
                reset()

    def no_past(self) -> list[Past]:
        """A KV cache without tokens, for `hidden`."""
        return [Past(self.config.context) for _ in self.blocks]

    def hidden(
        self, ids: Int[Tensor, "batch sequence"], past: list[Past] | None = None
    ) -> Float[Tensor, "batch sequence width"]:
        """The input of the head: the output of the last norm. With a KV cache, `ids` are the first
        tokens, or the next one.

        Raises UsageError for a sequence longer than the context.
        """
        begin, sequence = past[0].tokens if past else 0, ids.shape[1]
        end = begin + sequence
        assert not begin or sequence == 1
        if end > self.config.context:
            raise UsageError(
                f"{end} tokens exceed the model's context of {self.config.context}: shorten "
                "the sequence, or raise `context`."
            )
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions.weight[begin:end]
        x = F.dropout(x, self.config.dropout, self.training) if self.config.dropout else x
        mask = window_mask(sequence, self.config.window, ids.device)
        for at, block in enumerate(self.blocks):
            if self.recompute is Recompute.FULL and torch.is_grad_enabled():
                x = checkpoint(block, x, self.rotary, mask, use_reentrant=False)
            else:
                x = block(x, self.rotary, mask, past[at] if past else None)
        normed: Tensor = self.norm(x)
        return normed

    def forward(
        self, ids: Int[Tensor, "batch sequence"]
    ) -> Float[Tensor, "batch sequence vocabulary"]:
        """Logits of the token after each position."""
        return F.linear(self.hidden(ids), self.head_weight)

    def loss(
        self,
        ids: Int[Tensor, "batch sequence"],
        targets: Int[Tensor, "batch sequence"],
        *,
        chunk_tokens: int | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy in nats over targets that are not -100, as `linear_cross_entropy`."""
        return linear_cross_entropy(
            self.hidden(ids).flatten(0, 1),
            self.head_weight,
            targets.flatten(),
            chunk_tokens=chunk_tokens,
        )


def _rotary(config: TransformerConfig) -> Rotary:
    return Rotary(config.head_dim, config.context, config.rope_theta, config.rope_stretch)
