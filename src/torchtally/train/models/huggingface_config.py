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
from torchtally.train.models.config import Activation, TransformerConfig
from torchtally.train.models.huggingface_names import ANY, KINDS, kind_of

CONFIG = "config.json"
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Of GPT-2, by transformers' names; the last two are the same function."""
SILU = {"attention_dropout": 0.0, "hidden_act": "silu"}
ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    "qwen3": SILU | {"attention_bias": False},
    "qwen3_moe": SILU | {"attention_bias": False},
    "gemma3_text": {
        "attention_dropout": 0.0,
        "attention_bias": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
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
THETA = {"mixtral": 1e6, "gemma3_text": 1e6}
"""transformers' defaults."""
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "gemma3_text": "Gemma3ForCausalLM",
}  # fmt: skip


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
    """Read a config.json, or the one in a folder, of one of `KINDS`.

    Raises UsageError naming the file and the unsupported key.
    """
    path = Path(path)
    keys = load(path / CONFIG if path.is_dir() else path)
    kind, values = keys.values.get("model_type"), keys.values
    if not isinstance(kind, str) or kind not in KINDS:
        supported = ", ".join(KINDS)
        raise UsageError(
            f"{keys.place}: model_type: {excerpt(kind)} is not supported. Supported: {supported}."
        )
    for key, value in ALWAYS.get(kind, SILU).items():
        if values.get(key, value) != value:
            raise _unlike(keys, key, values[key], value)
    model = model_of(keys, name=Path(keys.place).parent.name)
    attention = model.kinds[0].attention
    assert isinstance(attention, SelfAttention)
    is_usual = attention.head_dim * attention.heads == model.width
    sizes = {
        "layers": model.layers, "width": model.width, "heads": attention.heads,
        "kv_heads": attention.kv_heads, "head_dim": None if is_usual else attention.head_dim,
        "vocabulary": model.vocabulary, "context": model.context, "is_tied": model.is_tied,
        "norm_eps": values.get(*EPSILON.get(kind, LLAMA_EPSILON)), "has_bias": attention.has_bias,
        **{name: value for name, value in KINDS[kind].items() if value is not ANY},
        **_feed_forward(keys, model, attention),
    }  # fmt: skip
    if kind == "gpt2":
        sizes["dropout"] = _dropout(keys, model)
    else:
        sizes |= {"window": attention.window, **_rotary(keys)}
    if kind == "gemma3_text":
        sizes |= _gemma(keys, model)
    return read_as(TransformerConfig, sizes, keys.place)


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
        "architectures": [ARCHITECTURES[kind]],
        "hidden_size": config.width,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        # The first is how transformers 4 spells it, the second transformers 5.
        "rope_theta": config.rope_theta,
        "rope_parameters": _rope(config),
    }
    experts = {"num_experts_per_tok": config.active_experts}
    window = {"sliding_window": config.window}
    match kind:
        case "mistral":
            return document | window
        case "mixtral":
            return document | window | experts | {"num_local_experts": config.experts}
        case "qwen3_moe":
            return document | experts | {
                "num_experts": config.experts, "moe_intermediate_size": config.ffn,
                "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
            }  # fmt: skip
        case "gemma3_text":
            return document | _gemma_document(config)
        case "llama":
            return document | {"attention_bias": config.has_bias, "mlp_bias": config.has_bias}
    return document


def _gemma_document(config: TransformerConfig) -> dict[str, Any]:
    theta = config.local_rope_theta or config.rope_theta
    names = ("full_attention", "sliding_attention")
    local = {"rope_type": "default", "rope_theta": theta}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": [names[config.is_local(layer)] for layer in range(config.layers)],
        "sliding_window": config.window,
        "query_pre_attn_scalar": config.query_scalar or config.head_size,
        "final_logit_softcapping": config.logit_cap,
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
    theta = values.get("rope_local_base_freq", LLAMA_THETA)
    return {
        "window": next(filter(None, windows), None),
        "global_every": every,
        "local_rope_theta": local.get("rope_theta", theta),
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


def _rotary(keys: Config) -> dict[str, Any]:
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
    theta = values.get("rope_theta") or THETA.get(str(values.get("model_type")), LLAMA_THETA)
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
