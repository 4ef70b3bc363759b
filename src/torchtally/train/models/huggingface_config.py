"""Converts between our configs and the config.json of transformers.

Sizes are read by `plan.architecture.config`, as in `tally plan`; this reads whatever else affects
logits. Keys that our decoder does not implement are refused.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.architecture.config import FAMILIES, model_of
from torchtally.plan.architecture.config_keys import Config, excerpt, load
from torchtally.plan.architecture.model import FeedForward, Model, SelfAttention
from torchtally.train.models.config import Activation, RopeStretch, TransformerConfig
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
    file = path / CONFIG if path.is_dir() else path
    keys = load(file)
    kind = keys.values.get("model_type")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UsageError(
            f"{file}: model_type: {excerpt(kind)} is not supported. Supported: {', '.join(KINDS)}."
        )
    for key, value in ALWAYS.get(kind, SILU).items():
        if keys.values.get(key, value) != value:
            raise _unlike(file, key, keys.values[key], value)
    model = model_of(keys, name=file.parent.name)
    attention, sizes = _parts(file, model)
    epsilon, default = EPSILON.get(kind, LLAMA_EPSILON)
    of_kind = {name: value for name, value in KINDS[kind].items() if value is not ANY}
    if kind == "gpt2":
        of_kind |= {
            "activation": _activation(file, sizes.pop("activation")),
            "dropout": _dropout(file, model),
        }
    else:
        of_kind |= _rotary(file, keys.values) | {"window": attention.window}
    if kind == "gemma3_text":
        of_kind |= _gemma(file, keys, model)
    values = {"has_bias": attention.has_bias, **sizes, **of_kind}
    is_usual = attention.head_dim * attention.heads == model.width
    return TransformerConfig(
        layers=model.layers, width=model.width, heads=attention.heads, kv_heads=attention.kv_heads,
        head_dim=None if is_usual else attention.head_dim,
        vocabulary=model.vocabulary, context=_context(file, model), is_tied=model.is_tied,
        norm_eps=_number(file, epsilon, keys.values.get(epsilon, default)), **values,
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


def _gemma(file: Path, keys: Config, model: Model) -> dict[str, Any]:
    """Which layers have the window, and what else Gemma 3 alone has."""
    windows = FAMILIES["gemma3_text"].windows(keys.of_type("gemma3_text"), model.layers)
    is_global = [window is None for window in windows]
    every = None
    if any(is_global) and not all(is_global):
        every = is_global.index(True) + 1
        if is_global != [(layer + 1) % every == 0 for layer in range(model.layers)]:
            raise _unlike(file, "layer_types", "this order", f"full_attention every {every} layers")
    values = keys.values
    tables = values.get("rope_parameters") or {}
    local = tables.get("sliding_attention") or {}
    theta = local.get("rope_theta", values.get("rope_local_base_freq", LLAMA_THETA))
    cap = values.get("final_logit_softcapping")
    return {
        "window": next(filter(None, windows), None),
        "global_every": every,
        "local_rope_theta": _number(file, "rope_local_base_freq", theta),
        "query_scalar": keys.size_or_none("query_pre_attn_scalar") or 256,
        "logit_cap": None if cap is None else _number(file, "final_logit_softcapping", cap),
    }


def _parts(file: Path, model: Model) -> tuple[SelfAttention, dict[str, Any]]:
    """Attention of the first layer, and the keys of the single kind of feed-forward."""
    attention, feed_forward = model.kinds[0].attention, model.kinds[0].feed_forward
    assert isinstance(attention, SelfAttention)
    assert feed_forward is not None
    if len(model.kinds) > 1 and not model.has_wide_norm:
        raise UsageError(f"{file}: {len(model.kinds)} kinds of layers; only one is supported.")
    if feed_forward.has_bias != attention.has_output_bias:
        expected = f"attention's, {attention.has_output_bias}"
        raise _unlike(file, "mlp_bias", feed_forward.has_bias, expected)
    if isinstance(feed_forward, FeedForward):
        return attention, {"ffn": feed_forward.width, "activation": feed_forward.activation}
    if not feed_forward.is_normalised:
        raise _unlike(file, "norm_topk_prob", False, True)
    return attention, {
        "ffn": feed_forward.width,
        "experts": feed_forward.experts,
        "active_experts": feed_forward.active,
    }


def _context(file: Path, model: Model) -> int:
    if model.context is None:
        raise UsageError(f"{file}: max_position_embeddings is missing.")
    return model.context


def _activation(file: Path, name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise _unlike(file, "activation_function", name, "one of " + ", ".join(ACTIVATIONS))
    return ACTIVATIONS[name]


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
    if stretch.original_context == 1:
        return table | {"rope_type": "linear", "factor": stretch.factor}
    values = {key: getattr(stretch, ours) for key, ours in STRETCH.items()}
    return table | {"rope_type": "llama3", **values}


def _rotary(file: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions: transformers 5 has them in `rope_parameters`, transformers 4 in
    `rope_theta` and `rope_scaling`.
    """
    key = "rope_parameters" if values.get("rope_parameters") else "rope_scaling"
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise _unlike(file, key, table, "a table")
    table = table.get("full_attention", table)
    if (share := table.get("partial_rotary_factor", 1.0)) != 1.0:
        raise _unlike(file, "partial_rotary_factor", share, 1.0)
    theta = values.get("rope_theta")
    if theta is None:
        theta = THETA.get(str(values.get("model_type")), LLAMA_THETA)
    theta = _number(file, "rope_theta", table.get("rope_theta", theta))
    return {"rope_theta": theta, "rope_stretch": _stretch(file, table)}


def _stretch(file: Path, table: Mapping[str, Any]) -> RopeStretch | None:
    """Llama 3.1's stretching, or linear."""
    match table.get("rope_type", table.get("type", "default")):
        case "default":
            return None
        case "linear":
            factor = _number(file, "factor", table.get("factor"))
            return RopeStretch(factor=factor, original_context=1)
        case "llama3":
            found = {ours: _number(file, key, table.get(key)) for key, ours in STRETCH.items()}
            context = found.pop("original_context")
            return RopeStretch(original_context=int(context), **found)
        case kind:
            raise _unlike(file, "rope_parameters", kind, "default, linear or llama3")


def _number(file: Path, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _unlike(file, key, value, "a number")
    return float(value)


def _unlike(file: Path, key: str, value: Any, expected: Any) -> UsageError:
    return UsageError(f"{file}: {key}: {excerpt(value)} is not supported: expected {expected}.")
