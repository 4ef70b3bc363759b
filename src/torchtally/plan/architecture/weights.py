"""Every trained tensor of a decoder: what it is for, its shape, how many there are, who meets it.

d: width.  e: width of the embedding.  V: vocabulary.  h, k: heads of queries, of keys and values.
D: head dim.  f: width of a feed-forward.  E, a: experts, and how many of them are active for a
token.  q, r: ranks of latent queries, of latent keys and values.  n, p: parts of a head without and
with positions.  v: head dim of values.

The list is the one fact from which parameters, FLOPs and the memory of every optimizer follow.
Matrices have the shape in which torch and transformers keep them, (out, in).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from math import prod

from torchtally.plan.architecture.model import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Model,
    SelfAttention,
)


class Group(StrEnum):
    """What a weight is for."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    RECURRENCE = "recurrence"
    FEED_FORWARD = "feed-forward"
    EXPERTS = "experts"
    ROUTER = "router"
    NORMS = "norms"
    PREDICTION = "prediction"
    """What joins the inputs of multi-token prediction."""
    HEAD = "head"


@dataclass(frozen=True, slots=True)
class Weight:
    """Trained tensors of one shape that play one part."""

    name: str
    group: Group
    shape: tuple[int, ...]
    count: int = 1
    uses: Fraction = Fraction(0)
    """How many times a token is multiplied by each of its elements: 1 by a matrix, a/E by an
    expert's, 0 by what is looked up, added or scales."""
    parts: int = 1
    """Matrices of which it is made: of gate and up in one 2."""

    @property
    def elements(self) -> int:
        """Elements of all of them."""
        return self.count * prod(self.shape)

    @property
    def active_elements(self) -> Fraction:
        """Those that one token is multiplied by."""
        return self.elements * self.uses


ONCE = Fraction(1)
JOIN = "join"
"""Of a token's state and an embedding, one: where a module of multi-token prediction begins."""
RECEPTANCE = "feed-forward receptance"
"""Of RWKV-4's feed-forward."""
OF_THE_VOCABULARY = ("embedding", "head")
"""The matrices with a row for each token of the vocabulary."""


def weights_of(model: Model) -> tuple[Weight, ...]:
    """All of a model's trained tensors; a tied one once, as the embedding."""
    return tuple(_weights(model))


def _weights(model: Model) -> Iterator[Weight]:
    d, V, e = model.width, model.vocabulary, model.embedding_width or model.width
    yield Weight("embedding", Group.EMBEDDING, (V, e), uses=ONCE if model.is_tied else Fraction(0))
    if e != d:
        yield Weight("embedding to layers", Group.EMBEDDING, (d, e), uses=ONCE)
    if model.has_embedding_norm:
        yield from _norm("embedding norm", model)
    if model.positions:
        yield Weight("positions", Group.EMBEDDING, (model.positions, d))
    for kind in model.kinds:
        yield from layer_weights(kind, model)
    if model.has_final_norm:
        yield from _norm("final norm", model)
    if e != d:
        yield Weight("layers to head", Group.HEAD, (e, d), uses=ONCE)
    if not model.is_tied:
        yield Weight("head", Group.HEAD, (V, e), uses=ONCE)
    if model.has_head_bias:
        yield Weight("head bias", Group.HEAD, (V,))


def layer_weights(layer: Layer, model: Model) -> Iterator[Weight]:
    """Those of one kind of layer, in all its layers."""
    if layer.is_predicting:
        yield from _norm("norms of prediction", model, 3 * layer.count)
        d = model.width
        yield Weight(JOIN, Group.PREDICTION, (d, 2 * d), layer.count, ONCE)
    match layer.attention:
        case SelfAttention():
            yield from _self_attention(layer.attention, model.width, layer.count)
        case LatentAttention():
            yield from _latent_attention(layer.attention, model.width, layer.count)
    if layer.recurrence is not None:
        for weight in layer.recurrence.weights(model.width):
            yield replace(weight, count=weight.count * layer.count)
    match layer.feed_forward:
        case FeedForward():
            yield from _feed_forward(layer.feed_forward, model.width, layer.count)
        case Experts():
            yield from _experts(layer.feed_forward, model.width, layer.count)
    yield from _norm("norms", model, layer.norms * layer.count)


def _norm(name: str, model: Model, count: int = 1) -> Iterator[Weight]:
    if model.norm != "plain":
        yield Weight(name, Group.NORMS, (model.width,), count)
    if model.norm == "layer":
        yield Weight(f"{name}' bias", Group.NORMS, (model.width,), count)


def _self_attention(self_attention: SelfAttention, d: int, count: int) -> Iterator[Weight]:
    group = Group.ATTENTION
    h, k, D = self_attention.heads, self_attention.kv_heads, self_attention.head_dim
    rows = {"q": h * D * (1 + self_attention.has_gate), "k": k * D, "v": k * D}
    if self_attention.is_fused:
        rows = {"qkv": sum(rows.values())}
    for name, out in rows.items():
        yield Weight(name, group, (out, d), count, ONCE)
        if self_attention.has_bias:
            yield Weight(f"{name} bias", group, (out,), count)
    yield Weight("attention output", group, (d, h * D), count, ONCE)
    if self_attention.has_output_bias:
        yield Weight("attention output bias", group, (d,), count)
    if self_attention.has_relative_positions:
        yield Weight("relative positions", group, (h * D, d), count, ONCE)
    for size in self_attention.head_norm_sizes:
        yield Weight("head norm", Group.NORMS, (size,), count)
        if self_attention.has_head_norm_bias:
            yield Weight("head norm bias", Group.NORMS, (size,), count)
    if self_attention.sinks:
        yield Weight("sinks", group, (self_attention.sinks,), count)


def _latent_attention(latent: LatentAttention, d: int, count: int) -> Iterator[Weight]:
    group = Group.ATTENTION
    h, q, r = latent.heads, latent.query_rank, latent.kv_rank
    n, p, v = latent.plain_head_dim, latent.rotary_head_dim, latent.value_head_dim
    if q is None:
        yield Weight("q", group, (h * (n + p), d), count, ONCE)
    else:
        yield Weight("q down", group, (q, d), count, ONCE)
        yield Weight("q norm", Group.NORMS, (q,), count)
        yield Weight("q up", group, (h * (n + p), q), count, ONCE)
        if latent.has_bias:
            yield Weight("q down bias", group, (q,), count)
    yield Weight("kv down", group, (r + p, d), count, ONCE)
    yield Weight("kv norm", Group.NORMS, (r,), count)
    yield Weight("kv up", group, (h * (n + v), r), count, ONCE)
    yield Weight("attention output", group, (d, h * v), count, ONCE)
    if latent.has_bias:
        yield Weight("kv down bias", group, (r + p,), count)
    if latent.has_output_bias:
        yield Weight("attention output bias", group, (d,), count)


def _feed_forward(feed_forward: FeedForward, d: int, count: int) -> Iterator[Weight]:
    group = Group.FEED_FORWARD
    for name, out in _first_projections(feed_forward).items():
        yield Weight(name, group, (out, d), count, ONCE)
        if feed_forward.has_bias:
            yield Weight(f"{name} bias", group, (out,), count)
    yield Weight("down", group, (d, feed_forward.width), count, ONCE)
    if feed_forward.has_bias:
        yield Weight("down bias", group, (d,), count)
    if feed_forward.has_receptance:
        yield Weight(RECEPTANCE, group, (d, d), count, ONCE)
        yield Weight("mixes of feed-forward", group, (1, 1, d), 2 * count)


def first_projections(feed_forward: FeedForward) -> tuple[str, ...]:
    """Names of the matrices before the activation function."""
    return tuple(_first_projections(feed_forward))


def _first_projections(feed_forward: FeedForward) -> dict[str, int]:
    """The same with their rows."""
    if not feed_forward.is_gated:
        return {"up": feed_forward.width}
    if feed_forward.is_fused:
        return {"gate and up": 2 * feed_forward.width}
    return {"gate": feed_forward.width, "up": feed_forward.width}


def _experts(experts: Experts, d: int, count: int) -> Iterator[Weight]:
    E, f, share = experts.experts, experts.width, Fraction(experts.active, experts.experts)
    ins = 2 * f if experts.is_gated else f
    yield Weight("router", Group.ROUTER, (E, d), count, ONCE)
    if experts.has_router_bias:
        yield Weight("router bias", Group.ROUTER, (E,), count)
    parts = 1 + experts.is_gated
    yield Weight("experts in", Group.EXPERTS, (E, ins, d), count, share, parts)
    yield Weight("experts out", Group.EXPERTS, (E, d, f), count, share)
    if experts.has_bias:
        yield Weight("experts in bias", Group.EXPERTS, (E, ins), count)
        yield Weight("experts out bias", Group.EXPERTS, (E, d), count)
    if experts.shared_width:
        shared = FeedForward(
            width=experts.shared_width,
            is_gated=experts.is_gated,
            activation=experts.activation,
            has_bias=experts.has_shared_bias,
            is_fused=experts.is_shared_fused,
        )
        yield from _feed_forward(shared, d, count)
    if experts.has_shared_gate:
        yield Weight("shared gate", Group.ROUTER, (1, d), count, ONCE)
