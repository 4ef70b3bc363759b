"""What a model_type of transformers means, as a row: its keys, and what its class fixes.

L: layers.  h, k: heads of queries, of keys and values.  D: head dim.  d: width.

A family is one `Family`; `read_decoder` makes a model of a config by its row. Rows are in
`gpt_like.py`, `llama_like.py` and `mixtures.py`. Each is tested against transformers' own class.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.plan.architecture.config_keys import Config, excerpt
from torchtally.plan.architecture.model import (
    Experts,
    FeedForward,
    LatentAttention,
    Layer,
    Model,
    SelfAttention,
)
from torchtally.plan.mixers.base import Recurrence

Says = bool | str
"""A fixed answer, or the key that gives it."""
Window = int | None
MOST_LAYERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A family's names of its sizes; several where transformers accepts several."""

    width: tuple[str, ...] = ("hidden_size",)
    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    inner: tuple[str, ...] = ("intermediate_size",)
    context: tuple[str, ...] = ("max_position_embeddings",)
    activation: str = "hidden_act"
    """"": silu, which no key says."""
    dropout: str = ""
    """Of what is added to the residual stream; "": none. A dot leads into a table."""
    embedding_dropout: str = ""
    attention_dropout: str = "attention_dropout"


@dataclass(frozen=True, slots=True)
class LayerParts:
    """What a layer has."""

    has_attention: bool = True
    has_recurrence: bool = False
    has_feed_forward: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One model_type: the names of its keys, and what its class fixes."""

    names: Names = Names()
    qkv_bias: Says = False
    output_bias: Says = False
    mlp_bias: Says = False
    head_bias: Says = False
    is_fused_qkv: bool = False
    is_gated: bool = True
    is_fused_gate: bool = False
    has_receptance: bool = False
    is_rotary: bool = True
    is_partly_rotary: bool | Callable[[Config], bool] = False
    is_parallel: Says = False
    norm: str | Callable[[Config], str] = "rms"
    has_wide_norm: bool = False
    norms: int | Callable[[Config], int] = 2
    """In a layer."""
    head_norms: Callable[[Config, int, int, int], tuple[int, ...]] = lambda config, h, k, D: ()
    """Their sizes, from heads, kv heads and head dim."""
    has_head_norm_bias: bool = False
    kv_heads: Callable[[Config, int], int] | None = None
    """From the heads; None: by their own key, or as many as heads."""
    has_wide_inner: bool = False
    """The inner width is four times the width where no key says otherwise."""
    windows: Callable[[Config, int], tuple[Window, ...]] = lambda config, layers: (None,) * layers
    """One for each layer."""
    is_chunked: bool = False
    sinks: bool = False
    is_written_out: bool = False
    score_cap: str = ""
    """The key that caps attention's scores; "": none does."""
    logit_cap: str = ""
    has_attention_dropout: Says = True
    """Whether the class uses its key."""
    positions: Callable[[Config], int] = lambda config: 0
    embedding_width: str = ""
    """The key that says it."""
    has_embedding_norm: bool = False
    is_embedding_norm_recomputed: bool = False
    has_final_norm: Callable[[Config], bool] | None = None
    latent: Callable[[Config], LatentAttention] | None = None
    has_gate: bool = False
    """Of attention's result."""
    recurrence: Callable[[Config], Recurrence] | None = None
    parts: Callable[[Config, int], tuple[LayerParts, ...]] | None = None
    """What each layer has; None: attention and a feed-forward."""
    inner: Callable[[Config], int] | None = None
    """The inner width, where it is not a key's."""
    experts: Callable[[Config], Experts] | None = None
    sparse_layers: Callable[[Config, int], frozenset[int]] = lambda config, L: frozenset(range(L))
    """Those whose feed-forward is a mixture, where there are experts."""
    left_out: Callable[[Config], tuple[str, ...]] = lambda config: ()


def read_decoder(config: Config, family: Family, name: str) -> Model:
    """The model that these keys describe, by the row of its family."""
    width = config.size(*family.names.width)
    return Model(
        name=name,
        width=width,
        vocabulary=config.size("vocab_size"),
        kinds=kinds(_layers(config, family, width)),
        is_tied=config.flag("tie_word_embeddings"),
        norm=family.norm if isinstance(family.norm, str) else family.norm(config),
        has_wide_norm=family.has_wide_norm,
        positions=family.positions(config),
        embedding_width=_embedding_width(config, family, width),
        has_embedding_norm=family.has_embedding_norm,
        is_embedding_norm_recomputed=family.is_embedding_norm_recomputed,
        has_head_bias=says(config, family.head_bias),
        has_capped_logits=bool(family.logit_cap) and config.is_set(family.logit_cap),
        has_final_norm=family.has_final_norm is None or family.has_final_norm(config),
        context=config.size_or_none(*family.names.context),
        dropout=_dropout(config, family.names.dropout),
        embedding_dropout=_dropout(config, family.names.embedding_dropout),
        attention_dropout=_attention_dropout(config, family),
        dtype=dtype_of(config),
        left_out=family.left_out(config),
        source=config.place,
    )


def says(config: Config, rule: Says) -> bool:
    return rule if isinstance(rule, bool) else config.flag(rule)


def kinds(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Equal layers counted, in the order in which they first come."""
    return tuple(replace(kind, count=n) for kind, n in Counter(layers).items())


def layers_of(config: Config, family: Family) -> int:
    layers = config.size(*family.names.layers)
    if layers > MOST_LAYERS:
        raise config.wrong(
            family.names.layers[0], f"expected at most {MOST_LAYERS:,} layers, got {layers:,}"
        )
    return layers


def dtype_of(config: Config) -> str | None:
    """The dtype of the weights; None where the file has none, or "auto"."""
    value = config.values.get("dtype") or config.values.get("torch_dtype")
    name = value.removeprefix("torch.") if isinstance(value, str) else ""
    return name if name in DTYPE_BYTES else None


def head_dim(config: Config, d: int, h: int) -> int:
    """Head dimension by its key, or the width over the heads, which must then divide it."""
    D = config.size_or_none("head_dim")
    if D is None and d % h:
        raise config.wrong("head_dim", f"is missing, and {h} heads do not divide the width {d}")
    return D or d // h


def _layers(config: Config, family: Family, width: int) -> list[Layer]:
    L = layers_of(config, family)
    parts = family.parts(config, L) if family.parts else (LayerParts(),) * L
    norms = family.norms if isinstance(family.norms, int) else family.norms(config)
    is_parallel = says(config, family.is_parallel)
    recurrence = family.recurrence(config) if family.recurrence else None
    attends = any(part.has_attention for part in parts)
    attentions = _attentions(config, family, width, L) if attends else [None] * L
    sparse = family.sparse_layers(config, L) if family.experts else frozenset()
    fed = {at for at, part in enumerate(parts) if part.has_feed_forward}
    dense = None if fed <= sparse else _feed_forward(config, family, width)
    experts = family.experts(config) if family.experts and sparse else None
    if experts and experts.active > experts.experts:
        raise config.wrong(
            "experts", f"{experts.active} of {experts.experts} experts per token is impossible"
        )
    layers = []
    for at, (attention, part) in enumerate(zip(attentions, parts, strict=True)):
        layer = Layer(
            count=1,
            attention=attention if part.has_attention else None,
            recurrence=recurrence if part.has_recurrence else None,
            feed_forward=(experts if at in sparse else dense) if part.has_feed_forward else None,
            norms=norms,
            is_parallel=is_parallel,
        )
        layers.append(replace(layer, norms=min(norms, layer.blocks)) if family.parts else layer)
    return layers


def _attentions(
    config: Config, family: Family, width: int, layers: int
) -> list[SelfAttention | LatentAttention | None]:
    if family.latent is not None:
        return [family.latent(config)] * layers
    plain = _self_attention(config, family, width)
    windows = family.windows(config, layers)
    if family.is_chunked:
        return [_chunked_attention(config, plain, chunk) for chunk in windows]
    return [replace(plain, window=window) for window in windows]


def _chunked_attention(config: Config, plain: SelfAttention, chunk: Window) -> SelfAttention:
    """Llama 4's: positions, and norms of queries and keys, are in its chunked layers alone."""
    if chunk is None:
        return replace(plain, is_rotary=False)
    normed = config.flag("use_qk_norm")
    return replace(plain, window=chunk, is_chunked=True, has_plain_head_norms=normed)


def _self_attention(config: Config, family: Family, width: int) -> SelfAttention:
    h = config.size(*family.names.heads)
    D = head_dim(config, width, h)
    k = _kv_heads(config, family, h)
    return SelfAttention(
        heads=h,
        kv_heads=k,
        head_dim=D,
        has_bias=says(config, family.qkv_bias),
        has_output_bias=says(config, family.output_bias),
        head_norm_sizes=family.head_norms(config, h, k, D),
        has_head_norm_bias=family.has_head_norm_bias,
        is_fused=family.is_fused_qkv,
        is_rotary=family.is_rotary,
        is_partly_rotary=_is_partly_rotary(config, family),
        sinks=h if family.sinks else 0,
        is_written_out=family.is_written_out,
        is_capped=bool(family.score_cap) and config.is_set(family.score_cap),
        has_gate=family.has_gate,
    )


def _kv_heads(config: Config, family: Family, h: int) -> int:
    if family.kv_heads is not None:
        return family.kv_heads(config, h)
    k = config.size_or_none(*family.names.kv_heads) or h
    if h % k:
        raise config.wrong(family.names.kv_heads[0], f"{excerpt(k)} do not divide {h} heads")
    return k


def _feed_forward(config: Config, family: Family, width: int) -> FeedForward:
    inner = config.size_or_none(*family.names.inner) if family.has_wide_inner else None
    if family.inner is not None:
        inner = family.inner(config)
    if inner is None:
        inner = 4 * width if family.has_wide_inner else config.size(*family.names.inner)
    return FeedForward(
        width=inner,
        is_gated=family.is_gated,
        activation=config.text(family.names.activation) if family.names.activation else "silu",
        has_bias=says(config, family.mlp_bias),
        is_fused=family.is_fused_gate,
        has_receptance=family.has_receptance,
    )


def _is_partly_rotary(config: Config, family: Family) -> bool:
    rule = family.is_partly_rotary
    return rule if isinstance(rule, bool) else rule(config)


def _dropout(config: Config, key: str) -> float:
    """Dropout by its key, which may lie in a table: "attn_config.attn_pdrop"; "": none."""
    *tables, name = key.split(".")
    for table in tables:
        below = config.below(table)
        if below is None:
            return 0.0
        config = below
    return config.fraction(name) if name else 0.0


def _attention_dropout(config: Config, family: Family) -> float:
    is_obeyed = says(config, family.has_attention_dropout)
    return _dropout(config, family.names.attention_dropout) if is_obeyed else 0.0


def _embedding_width(config: Config, family: Family, width: int) -> int | None:
    if not family.embedding_width:
        return None
    narrow = config.size_or_none(family.embedding_width)
    return None if narrow == width else narrow
