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

from torchtally.errors import UsageError
from torchtally.plan.flops import Recompute
from torchtally.train.models.attention import CausalAttention, document_mask, window_mask
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.feed_forward import DecoderFeedForward, MixtureOfExperts
from torchtally.train.models.linear import Embedding, Linear
from torchtally.train.models.loss import linear_cross_entropy, soft_cap
from torchtally.train.models.norms import norm_of
from torchtally.train.models.past import Past
from torchtally.train.models.rotary import Rotary


class DecoderBlock(nn.Module):
    """x + attention(norm(x)), and x + feed_forward(norm(x)) of that; with a norm of what is added
    where the config has post norms.
    """

    def __init__(self, config: TransformerConfig, layer: int, recompute: Recompute) -> None:
        super().__init__()
        # 2 L outputs add up in the residual stream: each is scaled by 1 / sqrt(2 L), as in GPT-2.
        gain = 1 / math.sqrt(2 * config.layers)
        self.attention_norm = norm_of(config)
        self.is_local = config.is_local(layer)
        self.attention = CausalAttention(
            config,
            window=config.window if self.is_local else None,
            gain=gain,
            recomputes=recompute is Recompute.SELECTIVE,
        )
        self.feed_forward_norm = norm_of(config)
        kind = DecoderFeedForward if config.experts is None else MixtureOfExperts
        self.feed_forward = kind(config, gain=gain)
        self.attention_post_norm = norm_of(config) if config.has_post_norms else None
        self.feed_forward_post_norm = norm_of(config) if config.has_post_norms else None
        self.dropout = config.dropout

    def forward(
        self,
        x: Float[Tensor, "batch sequence width"],
        rotary: Rotary | None,
        mask: Bool[Tensor, "*any sequence sequence"] | None = None,
        past: Past | None = None,
    ) -> Float[Tensor, "batch sequence width"]:
        attended = self.attention(self.attention_norm(x), rotary, mask, past)
        x = x + self._drop_out(attended, self.attention_post_norm)
        fed = self.feed_forward(self.feed_forward_norm(x))
        return x + self._drop_out(fed, self.feed_forward_post_norm)

    def _drop_out(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        x = x if norm is None else norm(x)
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
        self.recompute = Recompute(recompute)
        self.document_start: int | None = None
        """The id that begins a document, if tokens attend to those of their own document alone."""
        d, std = config.width, config.init_std
        self.embedding = Embedding(config.vocabulary, d, std)
        is_rotary, theta = config.positions == "rope", config.local_rope_theta
        self.positions = None if is_rotary else Embedding(config.context, d, std)
        size = (config.head_size, config.context)
        self.rotary = Rotary(*size, config.rope_theta, config.rope_stretch) if is_rotary else None
        self.local_rotary = Rotary(*size, theta) if is_rotary and theta is not None else None
        self.blocks = nn.ModuleList(
            DecoderBlock(config, layer, self.recompute) for layer in range(config.layers)
        )
        self.norm = norm_of(config)
        self.head = None if config.is_tied else Linear(d, config.vocabulary, std=std)

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
        x = self._embed(ids, begin)
        local_mask, mask_of_all = window_mask(sequence, self.config.window, ids.device), None
        if self.document_start is not None and past is None:
            local_mask = document_mask(ids, self.document_start, self.config.window)
            mask_of_all = document_mask(ids, self.document_start, None)
        by_kind = {
            True: (self.local_rotary or self.rotary, local_mask),
            False: (self.rotary, mask_of_all),
        }
        pasts: list[Past | None] = [*past] if past else [None] * len(self.blocks)
        for block, past_of_block in zip(self.blocks, pasts, strict=True):
            x = self._run(block, x, *by_kind[bool(block.is_local)], past_of_block)
        normed: Tensor = self.norm(x)
        return normed

    def _embed(
        self, ids: Int[Tensor, "batch sequence"], begin: int
    ) -> Float[Tensor, "batch sequence width"]:
        """The input of the first block, for tokens at the positions from `begin` on."""
        x = self.embedding(ids)
        if self.config.is_embedding_scaled:
            x = x * math.sqrt(self.config.width)
        if self.positions is not None:
            x = x + self.positions.weight[begin : begin + ids.shape[1]]
        return F.dropout(x, self.config.dropout, self.training) if self.config.dropout else x

    def _run(self, block: nn.Module, *inputs: Any) -> Float[Tensor, "batch sequence width"]:
        """The output of a block, whose activations are recomputed where the model says so."""
        if self.recompute is Recompute.FULL and torch.is_grad_enabled():
            recomputed: Tensor = checkpoint(block, *inputs, use_reentrant=False)
            return recomputed
        output: Tensor = block(*inputs)
        return output

    def forward(
        self, ids: Int[Tensor, "batch sequence"]
    ) -> Float[Tensor, "batch sequence vocabulary"]:
        """Logits of the token after each position."""
        return self.logits(self.hidden(ids))

    def logits(self, hidden: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens vocabulary"]:
        """Logits of the input of the head."""
        return soft_cap(F.linear(hidden, self.head_weight), self.config.logit_cap)

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
            cap=self.config.logit_cap,
        )
