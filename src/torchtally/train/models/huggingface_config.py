"""Converts between our configs and the config.json of transformers.

Sizes are read by `plan.architecture.config`, as in `tally plan`; this reads whatever else affects
logits. Keys that our decoder does not implement are refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchtally.checkpoints.checked import read_as
from torchtally.errors import UsageError
from torchtally.plan.architecture.config import FAMILIES, model_of
from torchtally.plan.architecture.config_keys import Config, excerpt, load
from torchtally.plan.architecture.model import FeedForward, Model, SelfAttention
from torchtally.train.models.config import NAMES, Activation, TransformerConfig
from torchtally.train.models.huggingface_kinds import KINDS, kind_of

CONFIG = "config.json"
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Of GPT-2, by transformers' names; the last two are the same function."""
STRETCH = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context",
    "low_freq_factor": "low_factor",
    "high_freq_factor": "high_factor",
}
"""Keys of stretched rotary positions, and our names."""


def config_document(config: TransformerConfig, dtype: str) -> dict[str, Any]:
    """The content of a config.json. Llama and Mistral have no key for dropout, which does not
    affect logits and is omitted.

    Raises UsageError if transformers has no such model.
    """
    kind = kind_of(config)
    document = {
        "model_type": kind.name,
        "architectures": [kind.class_name],
        "dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
        **{key: getattr(config, ours) for key, ours in kind.keys.items()},
        **kind.always,
    }
    if config.positions == "rope":
        document["rope_parameters"] = _rope(config)
    else:
        document["activation_function"] = NAMES[config.activation]
    return document | (_gemma_document(config) if kind.name == "gemma3_text" else {})


def read_config(path: Path | str) -> TransformerConfig:
    """Read a config.json, or the one in a folder, of one of `KINDS`.

    Raises UsageError naming the file and the unsupported key.
    """
    path = Path(path)
    keys = load(path / CONFIG if path.is_dir() else path)
    name, values = keys.values.get("model_type"), keys.values
    if not isinstance(name, str) or name not in KINDS:
        raise _unlike(keys, "model_type", name, f"one of {', '.join(KINDS)}")
    kind = KINDS[name]
    for key, value in kind.always.items():
        if values.get(key, value) != value:
            raise _unlike(keys, key, values[key], value)
    model = model_of(keys, name=Path(keys.place).parent.name)
    attention = model.kinds[0].attention
    assert isinstance(attention, SelfAttention)
    is_usual = attention.head_dim * attention.heads == model.width
    epsilon = next(key for key, ours in kind.keys.items() if ours == "norm_eps")
    sizes = {
        "layers": model.layers, "width": model.width, "heads": attention.heads,
        "kv_heads": attention.kv_heads, "head_dim": None if is_usual else attention.head_dim,
        "vocabulary": model.vocabulary, "context": model.context, "is_tied": model.is_tied,
        "norm_eps": values.get(epsilon, kind.epsilon),
        "has_bias": "has_bias" in kind.free and attention.has_bias,
        **kind.fixed, **_feed_forward(keys, model, attention),
    }  # fmt: skip
    if model.positions:
        sizes["dropout"] = _dropout(keys, model)
    else:
        sizes |= {"window": attention.window, **_rotary(keys, kind.theta)}
    if name == "gemma3_text":
        sizes |= _gemma(keys, model)
    return read_as(TransformerConfig, sizes, keys.place)


def config_beside(weights: Path | str) -> TransformerConfig | None:
    """The config.json of a folder of weights, or beside a file of them; None without one."""
    path = Path(weights)
    folder = path if path.is_dir() else path.parent
    return read_config(folder) if (folder / CONFIG).exists() else None


def _gemma_document(config: TransformerConfig) -> dict[str, Any]:
    theta = config.local_rope_theta or config.rope_theta
    names = ("full_attention", "sliding_attention")
    local = {"rope_type": "default", "rope_theta": theta}
    return {
        "layer_types": [names[config.is_local(layer)] for layer in range(config.layers)],
        "query_pre_attn_scalar": config.query_scalar or config.head_size,
        "rope_local_base_freq": theta,
        "rope_parameters": dict(zip(names, (_rope(config), local), strict=True)),
        "pad_token_id": None,
    }


def _gemma(keys: Config, model: Model) -> dict[str, Any]:
    """Which layers have the window, and what else Gemma 3 alone has."""
    windows = FAMILIES["gemma3_text"].windows(keys.of_type("gemma3_text"), model.layers)
    is_global = [window is None for window in windows]
    every = None
    if any(is_global) and not all(is_global):
        every = is_global.index(True) + 1
        if is_global != [(layer + 1) % every == 0 for layer in range(model.layers)]:
            raise _unlike(keys, "layer_types", "this order", f"full_attention every {every} layers")
    values = keys.values
    local = (values.get("rope_parameters") or {}).get("sliding_attention") or {}
    if (cap := values.get("attn_logit_softcapping")) is not None:
        raise _unlike(keys, "attn_logit_softcapping", cap, None)
    return {
        "window": next(filter(None, windows), None),
        "global_every": every,
        "local_rope_theta": local.get("rope_theta", values.get("rope_local_base_freq", 10_000.0)),
        "query_scalar": keys.size_or_none("query_pre_attn_scalar") or 256,
        "logit_cap": values.get("final_logit_softcapping"),
    }


def _feed_forward(keys: Config, model: Model, attention: SelfAttention) -> dict[str, Any]:
    """The sizes of the one kind of feed-forward."""
    feed_forward = model.kinds[0].feed_forward
    assert feed_forward is not None
    if len(model.kinds) > 1 and not model.has_wide_norm:
        kinds = f"{len(model.kinds)} kinds of layers; only one is supported"
        raise UsageError(f"{keys.place}: {kinds}.")
    if feed_forward.has_bias != attention.has_output_bias:
        expected = f"attention's, {attention.has_output_bias}"
        raise _unlike(keys, "mlp_bias", feed_forward.has_bias, expected)
    if isinstance(feed_forward, FeedForward):
        if model.positions and feed_forward.activation not in ACTIVATIONS:
            name, known = feed_forward.activation, ", ".join(ACTIVATIONS)
            raise _unlike(keys, "activation_function", name, f"one of {known}")
        activation = ACTIVATIONS.get(feed_forward.activation)
        return {"ffn": feed_forward.width} | ({"activation": activation} if model.positions else {})
    if not feed_forward.is_normalised:
        raise _unlike(keys, "norm_topk_prob", False, True)
    return {
        "ffn": feed_forward.width,
        "experts": feed_forward.experts,
        "active_experts": feed_forward.active,
    }


def _dropout(keys: Config, model: Model) -> float:
    """GPT-2's three dropout rates, which must be equal."""
    others = (model.embedding_dropout, model.attention_dropout)
    if any(value is not None and value != model.dropout for value in others):
        raise _unlike(keys, "embd_pdrop and attn_pdrop", others, f"resid_pdrop, {model.dropout}")
    return model.dropout


def _rope(config: TransformerConfig) -> dict[str, Any]:
    table: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if (stretch := config.rope_stretch) is None:
        return table
    if stretch.original_context == 1:
        return table | {"rope_type": "linear", "factor": stretch.factor}
    values = {key: getattr(stretch, ours) for key, ours in STRETCH.items()}
    return table | {"rope_type": "llama3", **values}


def _rotary(keys: Config, usual_theta: float) -> dict[str, Any]:
    """Rotary positions: transformers 5 has them in `rope_parameters`, transformers 4 in
    `rope_theta` and `rope_scaling`.
    """
    values = keys.values
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise _unlike(keys, key, table, "a table")
    table = table.get("full_attention", table)
    if (share := table.get("partial_rotary_factor", 1.0)) != 1.0:
        raise _unlike(keys, "partial_rotary_factor", share, 1.0)
    theta = values.get("rope_theta") or usual_theta
    stretch: dict[str, Any] | None = None
    match table.get("rope_type", table.get("type", "default")):
        case "default":
            pass
        case "linear":
            stretch = {"factor": table.get("factor"), "original_context": 1}
        case "llama3":
            stretch = {ours: table.get(key) for key, ours in STRETCH.items()}
        case kind:
            raise _unlike(keys, "rope_parameters", kind, "default, linear or llama3")
    return {"rope_theta": table.get("rope_theta", theta), "rope_stretch": stretch}


def _unlike(keys: Config, key: str, value: Any, expected: Any) -> UsageError:
    complaint = f"{excerpt(value)} is not supported: expected {expected}."
    return UsageError(f"{keys.place}: {key}: {complaint}")
