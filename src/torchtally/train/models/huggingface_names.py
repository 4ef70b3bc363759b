"""The mapping between our tensors and Hugging Face's names, per kind of checkpoint.

GPT-2 stores matrices as "Conv1D", (in, out), with query, key and value in one; all others store
(out, in), each separately.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from torchtally.errors import UsageError
from torchtally.train.models.config import TransformerConfig

NO_WEIGHTS = re.compile(r"\.attn\.(masked_)?bias$|\.rotary_emb\.inv_freq$")
"""Untrained masks and tables in older checkpoints."""


@dataclass(frozen=True, slots=True)
class WeightMapping:
    """A Hugging Face tensor, and where it is in ours."""

    theirs: str
    ours: str
    rows: tuple[int, int] | None = None
    """First and last + 1 row of our parameter; None: all of it."""
    is_transposed: bool = False


ANY = object()
PLAIN: dict[str, Any] = {
    "norm": "rms", "positions": "rope", "activation": "swiglu", "has_bias": False,
    "has_qkv_bias": False, "has_qk_norm": False, "has_post_norms": False,
    "is_embedding_scaled": False, "window": None, "global_every": None, "local_rope_theta": None,
    "query_scalar": None, "logit_cap": None, "experts": None,
}  # fmt: skip
KINDS: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    "llama": PLAIN | {"has_bias": ANY},
    "mistral": PLAIN | {"window": ANY},
    "qwen2": PLAIN | {"has_qkv_bias": True},
    "qwen3": PLAIN | {"has_qk_norm": True},
    "mixtral": PLAIN | {"window": ANY, "experts": ANY},
    "qwen3_moe": PLAIN | {"has_qk_norm": True, "experts": ANY},
    "gemma3_text": PLAIN | {
        "norm": "rms_plus_one", "activation": "geglu", "has_qk_norm": True, "has_post_norms": True,
        "is_embedding_scaled": True, "window": ANY, "global_every": ANY, "local_rope_theta": ANY,
        "query_scalar": ANY, "logit_cap": ANY,
    },
    "gpt2": PLAIN | {
        "norm": "layer", "positions": "learned", "activation": ANY, "has_bias": True,
    },
})  # fmt: skip
"""What a config must be for a model_type of transformers; a config is of the first that fits."""


def kind_of(config: TransformerConfig) -> str:
    """The model_type of transformers for a config.

    Raises UsageError for a combination that no such class has.
    """
    unlike = {kind: _unlike(config, kind) for kind in KINDS}
    nearest = min(unlike, key=lambda kind: len(unlike[kind]))
    if not unlike[nearest]:
        return nearest
    raise UsageError(
        f"transformers has no such model. The nearest is {nearest}, with "
        f"{', '.join(unlike[nearest])}."
    )


def _unlike(config: TransformerConfig, kind: str) -> list[str]:
    """Where a config is not of this kind."""
    wanted = dict(KINDS[kind])
    if kind == "gpt2":
        wanted |= {"kv_heads": config.heads, "head_size": config.width // config.heads}
        wanted["activation"] = "gelu" if config.activation == "gelu" else "gelu_tanh"
    return [
        f"{name}={value!r} instead of {getattr(config, name)!r}"
        for name, value in wanted.items()
        if value is not ANY and getattr(config, name) != value
    ]


GPT2 = {
    "ln_1": "attention_norm", "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.output",
    "ln_2": "feed_forward_norm", "mlp.c_fc": "feed_forward.up", "mlp.c_proj": "feed_forward.down",
}  # fmt: skip
ATTENTION = {
    "input_layernorm": "attention_norm", "self_attn.q_proj": "attention.qkv",
    "self_attn.k_proj": "attention.qkv", "self_attn.v_proj": "attention.qkv",
    "self_attn.o_proj": "attention.output",
}  # fmt: skip
HEAD_NORMS = {"self_attn.q_norm": "attention.q_norm", "self_attn.k_norm": "attention.k_norm"}
NORMS = {"post_attention_layernorm": "feed_forward_norm"}
POST_NORMS = {
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "feed_forward_norm",
    "post_feedforward_layernorm": "feed_forward_post_norm",
}
FEED_FORWARD = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
MIXTRAL = {"w1": "gate", "w3": "up", "w2": "down"}
"""The modules of a layer by their names, and ours."""


def weight_mappings(config: TransformerConfig) -> tuple[WeightMapping, ...]:
    """Every tensor of a checkpoint, in model order. Raises UsageError like `kind_of`."""
    kind = kind_of(config)
    listed = _gpt2(config) if kind == "gpt2" else _llama(config, kind)
    head = () if config.is_tied else (WeightMapping("lm_head.weight", "head.weight"),)
    return (*listed, *head)


def _gpt2(config: TransformerConfig) -> Iterator[WeightMapping]:
    yield WeightMapping("transformer.wte.weight", "embedding.weight")
    yield WeightMapping("transformer.wpe.weight", "positions.weight")
    for at, (theirs, ours) in product(range(config.layers), GPT2.items()):
        is_conv1d = not ours.endswith("norm")
        name = f"transformer.h.{at}.{theirs}"
        yield WeightMapping(f"{name}.weight", f"blocks.{at}.{ours}.weight", None, is_conv1d)
        yield WeightMapping(f"{name}.bias", f"blocks.{at}.{ours}.bias")
    yield WeightMapping("transformer.ln_f.weight", "norm.weight")
    yield WeightMapping("transformer.ln_f.bias", "norm.bias")


def _llama(config: TransformerConfig, kind: str) -> Iterator[WeightMapping]:
    q, kv = config.heads * config.head_size, config.kv_heads * config.head_size
    # Of the combined matrix for query, key and value.
    rows = {
        "self_attn.q_proj": (0, q),
        "self_attn.k_proj": (q, q + kv),
        "self_attn.v_proj": (q + kv, q + 2 * kv),
    }
    modules = {
        **ATTENTION,
        **(HEAD_NORMS if config.has_qk_norm else {}),
        **(POST_NORMS if config.has_post_norms else NORMS),
        **_feed_forward(config, kind),
    }
    yield WeightMapping("model.embed_tokens.weight", "embedding.weight")
    for at, (theirs, ours) in product(range(config.layers), modules.items()):
        has_qkv_bias = config.has_qkv_bias and ours == "attention.qkv"
        has_bias = has_qkv_bias or (config.has_bias and not ours.endswith("norm"))
        for part in ("weight", "bias") if has_bias else ("weight",):
            yield WeightMapping(
                f"model.layers.{at}.{theirs}.{part}", f"blocks.{at}.{ours}.{part}", rows.get(theirs)
            )
    yield WeightMapping("model.norm.weight", "norm.weight")


def _feed_forward(config: TransformerConfig, kind: str) -> dict[str, str]:
    if config.experts is None:
        return {f"mlp.{name}": f"feed_forward.{ours}" for name, ours in FEED_FORWARD.items()}
    place, names = ("block_sparse_moe", MIXTRAL) if kind == "mixtral" else ("mlp", FEED_FORWARD)
    return {f"{place}.gate": "feed_forward.router"} | {
        f"{place}.experts.{expert}.{name}": f"feed_forward.experts.{expert}.{ours}"
        for expert, (name, ours) in product(range(config.experts), names.items())
    }
