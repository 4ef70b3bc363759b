"""The models that are measured: the usual families, each as small as it can be written.

A model is built from a plain config, and its forward takes what the config's `sample` gives and
returns the loss. The figures of a step must follow from the config alone, never from what a tensor
holds: no shape here depends on data.

B: batch.  S: sequence.
"""

from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint


class Attention(StrEnum):
    """Who computes attention."""

    DEFAULT = "default"
    """Whatever `scaled_dot_product_attention` chooses."""
    FLASH = "flash"
    EFFICIENT = "efficient"
    CUDNN = "cudnn"
    MATH = "math"
    WRITTEN_OUT = "written-out"
    """Two products and a softmax in Python."""


BACKENDS = {
    Attention.FLASH: SDPBackend.FLASH_ATTENTION,
    Attention.EFFICIENT: SDPBackend.EFFICIENT_ATTENTION,
    Attention.CUDNN: SDPBackend.CUDNN_ATTENTION,
    Attention.MATH: SDPBackend.MATH,
}


class Checkpointing(StrEnum):
    """Which blocks are run again in the backward pass: none, or all of them."""

    NONE = "none"
    REENTRANT = "reentrant"
    NON_REENTRANT = "non-reentrant"


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention: Attention,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Attention of (B, heads, S, head width); keys and values may have fewer heads."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and attention in (Attention.EFFICIENT, Attention.WRITTEN_OUT):
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        groups = 1
    if attention is Attention.WRITTEN_OUT:
        return written_out(query, key, value, mask, is_causal, dropout, scale)
    # The choice stands around the call itself: a block that is run again must choose again. A host
    # has kernels of its own.
    backend = BACKENDS.get(attention) if query.is_cuda else None
    with nullcontext() if backend is None else sdpa_kernel(backend):
        return F.scaled_dot_product_attention(
            query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=groups > 1
        )


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    dropout: float,
    scale: float | None,
) -> Tensor:
    scores = query @ key.transpose(-2, -1)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores + mask
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    weights = F.dropout(scores.softmax(-1), dropout, training=dropout > 0)
    return weights.to(value.dtype) @ value


def run(block: nn.Module, checkpointing: Checkpointing, *inputs: Any) -> Any:
    """A block, kept or run again in the backward pass."""
    if checkpointing is Checkpointing.NONE:
        return block(*inputs)
    return checkpoint(block, *inputs, use_reentrant=checkpointing is Checkpointing.REENTRANT)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, S, heads * w) as (B, heads, S, w)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)


def token_ids(vocabulary: int, *shape: int, generator: Generator) -> Tensor:
    return torch.randint(0, vocabulary, shape, generator=generator)


def shifted(vocabulary: int, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
    """Tokens, and the tokens that follow them."""
    tokens = token_ids(vocabulary, batch, sequence + 1, generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


# The pre-norm block of GPT and ViT ------------------------------------------------------------


class SelfAttention(nn.Module):
    def __init__(
        self, width: int, heads: int, attention: Attention, dropout: float, is_causal: bool
    ) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.dropout, self.is_causal = dropout, is_causal
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = (
            split_heads(part, self.heads) for part in self.into(x).chunk(3, dim=-1)
        )
        mixed = attend(
            query, key, value, self.attention,
            mask=mask, is_causal=self.is_causal, dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return cast(Tensor, self.out(merge_heads(mixed)))


class Block(nn.Module):
    def __init__(
        self, width: int, heads: int, attention: Attention, dropout: float, *, is_causal: bool
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, attention, dropout, is_causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        hidden = F.gelu(self.up(self.norm2(x)))
        return cast(Tensor, x + self.dropout(self.down(hidden)))


# GPT ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GPTConfig:
    layers: int
    width: int
    heads: int
    vocabulary: int = 50257
    context: int = 1024
    dropout: float = 0.0
    attention: Attention = Attention.DEFAULT
    checkpointing: Checkpointing = Checkpointing.NONE

    def small(self) -> "GPTConfig":
        return replace(self, layers=2, width=64, heads=2, vocabulary=256, context=64)

    def build(self) -> nn.Module:
        return GPT(self)

    def sample(self, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
        return shifted(self.vocabulary, batch, sequence, generator)


class GPT(nn.Module):
    """GPT-2: learnt positions, the head's weight is the embedding's."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.attention, config.dropout, is_causal=True)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(initialise)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = run(block, self.config.checkpointing, x)
        return token_loss(self.head(self.norm(x)), targets)


# Llama, and its mixture of experts ------------------------------------------------------------


@dataclass(frozen=True)
class LlamaConfig:
    layers: int
    width: int
    heads: int
    groups: int
    """Heads of keys and values."""
    hidden: int
    vocabulary: int = 32000
    attention: Attention = Attention.DEFAULT
    checkpointing: Checkpointing = Checkpointing.NONE
    experts: int = 0
    """0: one feed-forward network, for all tokens."""
    chosen: int = 2
    capacity_factor: float = 1.25

    def small(self) -> "LlamaConfig":
        experts = min(self.experts, 4)
        return replace(
            self, layers=2, width=64, heads=4, groups=2, hidden=96, vocabulary=256, experts=experts
        )

    def build(self) -> nn.Module:
        return Llama(self)

    def sample(self, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
        return shifted(self.vocabulary, batch, sequence, generator)


class RMSNorm(nn.Module):
    """As Llama's own code has it: in float32, one operator after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return wide.to(x.dtype) * self.weight


def rotary(sequence: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines (S, w) of the rotations by position."""
    frequency = 10000 ** (-torch.arange(0, width, 2, device=device) / width)
    angle = torch.arange(sequence, device=device)[:, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return (x * cosine + torch.cat((-second, first), dim=-1) * sine).to(x.dtype)


class GroupedAttention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        head = config.width // config.heads
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, config.groups * head, bias=False)
        self.value = nn.Linear(config.width, config.groups * head, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        query = rotated(split_heads(self.query(x), self.config.heads), cosine, sine)
        key = rotated(split_heads(self.key(x), self.config.groups), cosine, sine)
        value = split_heads(self.value(x), self.config.groups)
        mixed = attend(query, key, value, self.config.attention, is_causal=True)
        return cast(Tensor, self.out(merge_heads(mixed)))


class SwiGLU(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.silu(self.gate(x)) * self.up(x)))


class Mixture(nn.Module):
    """Each token's best k experts, each expert with room for so many tokens and no more.

    The room is fixed by the shapes alone (GShard's capacity); tokens that find none go to a row
    nobody reads. So every tensor has one size, wherever the router sends the tokens.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        experts, width, hidden = config.experts, config.width, config.hidden
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.empty(experts, width, hidden))
        self.up = nn.Parameter(torch.empty(experts, width, hidden))
        self.down = nn.Parameter(torch.empty(experts, hidden, width))
        for parameter in (self.gate, self.up, self.down):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, 1)
        experts, chosen = self.config.experts, self.config.chosen
        room = int(self.config.capacity_factor * len(rows) * chosen / experts)
        weights, choice = self.router(rows).float().softmax(-1).topk(chosen)
        weights, choice = weights / weights.sum(-1, keepdim=True), choice.flatten()
        taken = F.one_hot(choice, experts)
        place = (taken.cumsum(0) * taken).sum(-1) - 1
        slot = torch.where(place < room, choice * room + place, experts * room)
        inside = rows.new_zeros(experts * room + 1, rows.shape[1])
        inside = inside.index_copy(0, slot, rows.repeat_interleave(chosen, dim=0))
        inside = inside[:-1].view(experts, room, -1)
        hidden = F.silu(inside @ self.gate) * (inside @ self.up)
        outside = F.pad((hidden @ self.down).flatten(0, 1), (0, 0, 0, 1))
        mixed = outside.index_select(0, slot) * weights.flatten()[:, None]
        mixed = mixed.view(len(rows), chosen, -1).sum(1).to(x.dtype)
        return cast(Tensor, mixed.view_as(x))


class LlamaBlock(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(config.width), RMSNorm(config.width)
        self.attention = GroupedAttention(config)
        self.feed_forward: nn.Module = SwiGLU(config.width, config.hidden)
        if config.experts:
            self.feed_forward = Mixture(config)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cosine, sine)
        return cast(Tensor, x + self.feed_forward(self.norm2(x)))


class Llama(nn.Module):
    """Rotary positions, grouped-query attention, SwiGLU or a mixture of experts; nothing tied."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(initialise)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens)
        head = self.config.width // self.config.heads
        cosine, sine = (
            tensor.to(x.dtype) for tensor in rotary(tokens.shape[1], head, tokens.device)
        )
        for block in self.blocks:
            x = run(block, self.config.checkpointing, x, cosine, sine)
        return token_loss(self.head(self.norm(x)), targets)


# ViT ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ViTConfig:
    layers: int
    width: int
    heads: int
    pixels: int = 224
    patch: int = 16
    classes: int = 1000
    dropout: float = 0.0
    attention: Attention = Attention.DEFAULT
    checkpointing: Checkpointing = Checkpointing.NONE

    def small(self) -> "ViTConfig":
        return replace(self, layers=2, width=64, heads=2, pixels=32, patch=8, classes=10)

    def build(self) -> nn.Module:
        return ViT(self)

    def sample(self, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
        return images(batch, self.pixels, self.classes, generator)


def images(batch: int, pixels: int, classes: int, generator: Generator) -> tuple[Tensor, ...]:
    """Images and their classes."""
    pictures = torch.randn(batch, 3, pixels, pixels, generator=generator)
    return pictures, torch.randint(0, classes, (batch,), generator=generator)


class ViT(nn.Module):
    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        patches = (config.pixels // config.patch) ** 2
        self.patches = nn.Conv2d(3, config.width, config.patch, config.patch)
        self.first = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = nn.Parameter(torch.zeros(1, patches + 1, config.width))
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.attention, config.dropout, is_causal=False)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)
        self.apply(initialise)

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), dim=1)
        x = self.dropout(x + self.positions)
        for block in self.blocks:
            x = run(block, self.config.checkpointing, x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), classes)


# BERT -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BertConfig:
    layers: int
    width: int
    heads: int
    vocabulary: int = 30522
    context: int = 512
    dropout: float = 0.1
    attention: Attention = Attention.DEFAULT
    checkpointing: Checkpointing = Checkpointing.NONE

    def small(self) -> "BertConfig":
        return replace(self, layers=2, width=64, heads=2, vocabulary=256, context=64)

    def build(self) -> nn.Module:
        return Bert(self)

    def sample(self, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
        """Tokens, which of them are not padding, and the words that were masked."""
        tokens = token_ids(self.vocabulary, batch, sequence, generator=generator)
        lengths = torch.randint(sequence // 2, sequence + 1, (batch, 1), generator=generator)
        is_word = torch.arange(sequence) < lengths
        is_asked = torch.rand(tokens.shape, generator=generator) < 0.15
        return tokens, is_word, tokens.masked_fill(~is_asked, -100)


class BertBlock(nn.Module):
    """Post-norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.width
        self.attention = SelfAttention(
            width, config.heads, config.attention, config.dropout, is_causal=False
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        hidden = F.gelu(self.up(x))
        return cast(Tensor, self.norm2(x + self.dropout(self.down(hidden))))


class Bert(nn.Module):
    """An encoder with padding, asked for the masked words."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.tokens = nn.Embedding(config.vocabulary, width)
        self.positions = nn.Embedding(config.context, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(BertBlock(config) for _ in range(config.layers))
        self.dense, self.dense_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, config.vocabulary)
        self.head.weight = self.tokens.weight
        self.apply(initialise)

    def forward(self, tokens: Tensor, is_word: Tensor, words: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.tokens(tokens) + self.positions(positions)))
        mask = is_word[:, None, None, :]
        for block in self.blocks:
            x = run(block, self.config.checkpointing, x, mask)
        return token_loss(self.head(self.dense_norm(F.gelu(self.dense(x)))), words)


# T5 -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class T5Config:
    layers: int
    """Of the encoder, and as many of the decoder."""
    width: int
    heads: int
    head: int
    hidden: int
    vocabulary: int = 32128
    buckets: int = 32
    dropout: float = 0.1
    attention: Attention = Attention.WRITTEN_OUT
    checkpointing: Checkpointing = Checkpointing.NONE

    def small(self) -> "T5Config":
        return replace(self, layers=2, width=64, heads=2, head=16, hidden=96, vocabulary=256)

    def build(self) -> nn.Module:
        return T5(self)

    def sample(self, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
        """Source tokens; target tokens, a quarter as many, and the ones that follow them."""
        source = token_ids(self.vocabulary, batch, sequence, generator=generator)
        return source, *shifted(self.vocabulary, batch, sequence // 4, generator)


class RelativePositions(nn.Module):
    """A learnt bias for each distance between query and key, distances in buckets."""

    def __init__(self, config: T5Config, *, is_causal: bool) -> None:
        super().__init__()
        self.buckets, self.is_causal = config.buckets, is_causal
        self.bias = nn.Embedding(config.buckets, config.heads)

    def forward(self, sequence: int, device: torch.device) -> Tensor:
        position = torch.arange(sequence, device=device)
        distance = position[:, None] - position
        half = self.buckets // 2
        near = distance.abs().clamp(max=half - 1)
        bias = self.bias(near + half * (distance < 0)).permute(2, 0, 1)[None]
        if self.is_causal:
            bias = bias.masked_fill(distance < 0, float("-inf"))
        return cast(Tensor, bias.contiguous())


class T5Attention(nn.Module):
    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        inner = config.heads * config.head
        self.query = nn.Linear(config.width, inner, bias=False)
        self.key = nn.Linear(config.width, inner, bias=False)
        self.value = nn.Linear(config.width, inner, bias=False)
        self.out = nn.Linear(inner, config.width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None) -> Tensor:
        query = split_heads(self.query(x), self.config.heads)
        key = split_heads(self.key(memory), self.config.heads)
        value = split_heads(self.value(memory), self.config.heads)
        if bias is not None and self.config.attention is not Attention.WRITTEN_OUT:
            bias = bias.to(query.dtype).expand(len(x), -1, -1, -1)
        dropout = self.config.dropout if self.training else 0.0
        mixed = attend(
            query, key, value, self.config.attention, mask=bias, dropout=dropout, scale=1.0
        )
        return cast(Tensor, self.out(merge_heads(mixed)))


class T5Block(nn.Module):
    """An encoder's block, or with `crosses` a decoder's."""

    def __init__(self, config: T5Config, *, crosses: bool) -> None:
        super().__init__()
        width, hidden = config.width, config.hidden
        self.norm1, self.norm3 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attention = T5Attention(config)
        self.crosses = crosses
        if crosses:
            self.norm2, self.cross = nn.RMSNorm(width, eps=1e-6), T5Attention(config)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None = None) -> Tensor:
        normed = self.norm1(x)
        x = x + self.dropout(self.attention(normed, normed, bias))
        if self.crosses:
            x = x + self.dropout(self.cross(self.norm2(x), memory, None))
        normed = self.norm3(x)
        hidden = F.gelu(self.gate(normed), approximate="tanh") * self.up(normed)
        return cast(Tensor, x + self.dropout(self.down(self.dropout(hidden))))


class T5(nn.Module):
    """T5 1.1: an encoder and a decoder that know positions by their distances alone."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.source_bias = RelativePositions(config, is_causal=False)
        self.target_bias = RelativePositions(config, is_causal=True)
        self.encoder, self.decoder = (
            nn.ModuleList(T5Block(config, crosses=crosses) for _ in range(config.layers))
            for crosses in (False, True)
        )
        self.source_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.target_norm = nn.RMSNorm(config.width, eps=1e-6)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.apply(initialise)

    def forward(self, source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        x, y = self.dropout(self.tokens(source)), self.dropout(self.tokens(target))
        bias = self.source_bias(source.shape[1], source.device)
        for block in self.encoder:
            x = run(block, self.config.checkpointing, x, bias)
        memory = self.dropout(self.source_norm(x))
        bias = self.target_bias(target.shape[1], target.device)
        for block in self.decoder:
            y = run(block, self.config.checkpointing, y, bias, memory)
        return token_loss(self.head(self.dropout(self.target_norm(y))), following)


# ResNet ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResNetConfig:
    depths: tuple[int, ...]
    """Blocks in each stage."""
    width: int = 64
    pixels: int = 224
    classes: int = 1000

    def small(self) -> "ResNetConfig":
        return replace(self, depths=(1, 1), width=16, pixels=32, classes=10)

    def build(self) -> nn.Module:
        return ResNet(self)

    def sample(self, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
        return images(batch, self.pixels, self.classes, generator)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around which the input is carried."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.conv3 = nn.Conv2d(width, wide, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.norm3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != wide:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return cast(Tensor, self.relu(self.norm3(self.conv3(y)) + self.shortcut(x)))


class ResNet(nn.Module):
    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        width = config.width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, channels = [], width
        for stage, depth in enumerate(config.depths):
            for number in range(depth):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(Bottleneck(channels, width << stage, stride))
                channels = 4 * (width << stage)
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(channels, config.classes)

    def forward(self, pictures: Tensor, classes: Tensor) -> Tensor:
        x = self.pool(self.blocks(self.stem(pictures))).flatten(1)
        return F.cross_entropy(self.head(x), classes)


# LSTM -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LSTMConfig:
    layers: int
    width: int
    hidden: int
    vocabulary: int = 33278
    dropout: float = 0.2

    def small(self) -> "LSTMConfig":
        return replace(self, layers=2, width=32, hidden=48, vocabulary=256)

    def build(self) -> nn.Module:
        return LSTM(self)

    def sample(self, batch: int, sequence: int, generator: Generator) -> tuple[Tensor, ...]:
        return shifted(self.vocabulary, batch, sequence, generator)


class LSTM(nn.Module):
    def __init__(self, config: LSTMConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.lstm = nn.LSTM(
            config.width, config.hidden, config.layers, dropout=config.dropout, batch_first=True
        )
        self.head = nn.Linear(config.hidden, config.vocabulary)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        out, _ = self.lstm(self.dropout(self.tokens(tokens)))
        return token_loss(self.head(self.dropout(out)), targets)


Config = GPTConfig | LlamaConfig | ViTConfig | BertConfig | T5Config | ResNetConfig | LSTMConfig
