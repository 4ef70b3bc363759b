"""Converts between our configs and the config.json of transformers.

Sizes are read by `plan.architecture.config`, as in `tally plan`; this reads whatever else affects
logits. Keys that our decoder does not implement are refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.architecture.config import model_of
from torchtally.plan.architecture.config_keys import excerpt, load
from torchtally.plan.architecture.model import FeedForward, Layer, Model, SelfAttention
from torchtally.train.models.config import Activation, RopeStretch, TransformerConfig
from torchtally.train.models.huggingface_names import kind_of

CONFIG = "config.json"
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Of GPT-2, by transformers' names; the last two are the same function."""
ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    "llama": {"attention_dropout": 0.0, "hidden_act": "silu"},
    "mistral": {"attention_dropout": 0.0, "hidden_act": "silu"},
}
"""Required values of keys, where present: our decoder implements nothing else."""
EPSILON = {"gpt2": ("layer_norm_epsilon", 1e-5)}
"""(key, default of transformers); all others use `LLAMA_EPSILON`."""
LLAMA_EPSILON = ("rms_norm_eps", 1e-6)
STRETCH = {
    "factor": "factor",
    "original_max_position_embeddings": "original_context",
    "low_freq_factor": "low_factor",
    "high_freq_factor": "high_factor",
}
"""Keys of stretched rotary positions, and our names."""
LLAMA_THETA = 10_000.0
"""transformers' default."""


def config_document(config: TransformerConfig, dtype: str) -> dict[str, Any]:
    """The content of a config.json. Llama and Mistral have no key for dropout, which does not
    affect logits and is omitted.

    Raises UsageError if transformers has no such model.
    """
    kind = kind_of(config)
    document = _gpt2(config) if kind == "gpt2" else _llama(config, kind)
    return {
        "model_type": kind,
        "dtype": dtype,
        "vocab_size": config.vocabulary,
        "tie_word_embeddings": config.is_tied,
        "bos_token_id": None,
        "eos_token_id": None,
        **document,
    }


def read_config(path: Path | str) -> TransformerConfig:
    """Read a config.json, or the one in a folder, of GPT-2, Llama or Mistral.

    Raises UsageError naming the file and the unsupported key.
    """
    path = Path(path)
    file = path / CONFIG if path.is_dir() else path
    keys = load(file)
    kind = keys.values.get("model_type")
    if not isinstance(kind, str) or kind not in ALWAYS:
        raise UsageError(
            f"{file}: model_type: {excerpt(kind)} is not supported. Supported: {', '.join(ALWAYS)}."
        )
    for key, value in ALWAYS[kind].items():
        if keys.values.get(key, value) != value:
            raise _unlike(file, key, keys.values[key], value)
    model = model_of(keys, name=file.parent.name)
    layer, attention, feed_forward = _parts(file, model)
    epsilon, default = EPSILON.get(kind, LLAMA_EPSILON)
    is_gpt2 = kind == "gpt2"
    return TransformerConfig(
        layers=layer.count, width=model.width, heads=attention.heads, kv_heads=attention.kv_heads,
        ffn=feed_forward.width, vocabulary=model.vocabulary, context=_context(file, model),
        norm="layer" if is_gpt2 else "rms", positions="learned" if is_gpt2 else "rope",
        activation=_activation(file, feed_forward), is_tied=model.is_tied,
        has_bias=attention.has_bias, window=attention.window,
        dropout=_dropout(file, model) if is_gpt2 else 0.0,
        rope_theta=LLAMA_THETA if is_gpt2 else _theta(file, keys.values),
        rope_stretch=None if is_gpt2 else _stretch(file, keys.values),
        norm_eps=_number(file, epsilon, keys.values.get(epsilon, default)),
    )  # fmt: skip


def config_beside(weights: Path | str) -> TransformerConfig | None:
    """The config.json of a folder of weights, or beside a file of them; None without one."""
    path = Path(weights)
    folder = path if path.is_dir() else path.parent
    return read_config(folder) if (folder / CONFIG).exists() else None


def _gpt2(config: TransformerConfig) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": config.context,
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": config.ffn,
        "activation_function": "gelu" if config.activation == "gelu" else "gelu_pytorch_tanh",
        "layer_norm_epsilon": config.norm_eps,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout),
    }


def _llama(config: TransformerConfig, kind: str) -> dict[str, Any]:
    document = {
        "architectures": ["LlamaForCausalLM" if kind == "llama" else "MistralForCausalLM"],
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        # The first is how transformers 4 spells it, the second transformers 5.
        "rope_theta": config.rope_theta,
        "rope_parameters": _rope(config),
    }
    if kind == "mistral":
        return document | {"sliding_window": config.window}
    return document | {"attention_bias": config.has_bias, "mlp_bias": config.has_bias}


def _parts(file: Path, model: Model) -> tuple[Layer, SelfAttention, FeedForward]:
    """The single kind of layer."""
    layer = model.kinds[0]
    attention, feed_forward = layer.attention, layer.feed_forward
    if len(model.kinds) > 1 or not isinstance(attention, SelfAttention):
        raise UsageError(f"{file}: {len(model.kinds)} kinds of layers; only one is supported.")
    assert isinstance(feed_forward, FeedForward)
    if attention.head_dim * attention.heads != model.width:
        raise _unlike(file, "head_dim", attention.head_dim, f"{model.width} / {attention.heads}")
    if feed_forward.has_bias != attention.has_bias:
        raise _unlike(file, "mlp_bias", feed_forward.has_bias, f"attention's, {attention.has_bias}")
    return layer, attention, feed_forward


def _context(file: Path, model: Model) -> int:
    if model.context is None:
        raise UsageError(f"{file}: max_position_embeddings is missing.")
    return model.context


def _activation(file: Path, feed_forward: FeedForward) -> Activation:
    if feed_forward.is_gated:
        return "swiglu"
    if feed_forward.activation not in ACTIVATIONS:
        choices = "one of " + ", ".join(ACTIVATIONS)
        raise _unlike(file, "activation_function", feed_forward.activation, choices)
    return ACTIVATIONS[feed_forward.activation]


def _dropout(file: Path, model: Model) -> float:
    """GPT-2's three dropout rates, which must be equal."""
    others = (model.embedding_dropout, model.attention_dropout)
    if any(value is not None and value != model.dropout for value in others):
        raise _unlike(file, "embd_pdrop and attn_pdrop", others, f"resid_pdrop, {model.dropout}")
    return model.dropout


def _rope(config: TransformerConfig) -> dict[str, Any]:
    table: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if (stretch := config.rope_stretch) is None:
        return table
    values = {key: getattr(stretch, ours) for key, ours in STRETCH.items()}
    return table | {"rope_type": "llama3", **values}


def _theta(file: Path, values: Mapping[str, Any]) -> float:
    table = _rope_table(file, values)
    theta = table.get("rope_theta", values.get("rope_theta", LLAMA_THETA))
    return _number(file, "rope_theta", theta)


def _stretch(file: Path, values: Mapping[str, Any]) -> RopeStretch | None:
    """Llama 3.1's stretching, the only one supported."""
    table = _rope_table(file, values)
    kind = table.get("rope_type", table.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise _unlike(file, "rope_parameters", kind, "default or llama3")
    if kind == "default":
        return None
    found = {ours: _number(file, key, table.get(key)) for key, ours in STRETCH.items()}
    context = found.pop("original_context")
    return RopeStretch(original_context=int(context), **found)


def _rope_table(file: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """From the key of transformers 5, or that of transformers 4."""
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise _unlike(file, key, table, "a table")
    if (share := table.get("partial_rotary_factor", 1.0)) != 1.0:
        raise _unlike(file, "partial_rotary_factor", share, 1.0)
    return table


def _number(file: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unlike(file, key, value, "a number")
    return float(value)


def _unlike(file: Path, key: str, value: Any, expected: Any) -> UsageError:
    return UsageError(f"{file}: {key}: {excerpt(value)} is not supported: expected {expected}.")
