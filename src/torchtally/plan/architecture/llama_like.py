"""Families that came from Llama: separate projections, rotary positions, RMS norms, a gate."""

from dataclasses import replace

from torchtally.plan.architecture.config_keys import Config
from torchtally.plan.architecture.families import Family, Names
from torchtally.plan.architecture.windows import (
    after_each_fourth,
    by_layer,
    every_layer,
    everywhere,
    late_layers,
    other_than_every,
    plain_layers,
)


def each_head(config: Config, h: int, k: int, D: int) -> tuple[int, ...]:
    """One norm for queries and one for keys, of a head's size: Qwen 3's."""
    return (D, D)


def whole(config: Config, h: int, k: int, D: int) -> tuple[int, ...]:
    """One norm for queries and one for keys, of all heads together: OLMo 2's."""
    return (h * D, k * D)


def _phi_head_norms(config: Config, h: int, k: int, D: int) -> tuple[int, ...]:
    return (D, D) if config.flag("qk_layernorm") else ()


def _stablelm_head_norms(config: Config, h: int, k: int, D: int) -> tuple[int, ...]:
    """A norm of its own for every head."""
    return (D,) * (h + k) if config.flag("qk_layernorm") else ()


def _cohere_head_norms(config: Config, h: int, k: int, D: int) -> tuple[int, ...]:
    return (h * D, k * D) if config.flag("use_qk_norm") else ()


def _stablelm_norms(config: Config) -> int:
    return 1 if config.flag("use_parallel_residual") else 2


LLAMA = Family(qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias")
BIASED_ATTENTION = Family(qkv_bias="attention_bias", output_bias="attention_bias")
QWEN2 = Family(qkv_bias=True, windows=by_layer(late_layers))
COHERE = replace(BIASED_ATTENTION, norms=1, is_parallel=True, has_wide_norm=True, norm="centred")
GEMMA = replace(BIASED_ATTENTION, has_wide_norm=True)
CAPPED_GEMMA = replace(
    GEMMA,
    names=Names(activation="hidden_activation"),
    score_cap="attn_logit_softcapping",
    logit_cap="final_logit_softcapping",
)
"""Where its keys are null, as Gemma 3's, nothing is capped."""
UNDROPPED = Names(attention_dropout="")
"""ERNIE's attention has a dropout of zero, whatever a file says."""
UNGATED = Family(is_gated=False, norm="layer")

LLAMA_LIKE = {
    "llama": LLAMA,
    "mistral": Family(windows=everywhere),
    "qwen2": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen3": replace(BIASED_ATTENTION, head_norms=each_head, windows=by_layer(late_layers)),
    "qwen3_vl_text": replace(BIASED_ATTENTION, head_norms=each_head),
    "gemma": GEMMA,
    "gemma2": replace(
        CAPPED_GEMMA, norms=4, windows=by_layer(other_than_every(2))
    ),
    "gemma3_text": replace(
        CAPPED_GEMMA, norms=4, head_norms=each_head,
        windows=by_layer(other_than_every(6, "sliding_window_pattern")),
    ),
    "phi": replace(
        UNGATED, names=Names(dropout="resid_pdrop", embedding_dropout="embd_pdrop"),
        qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True, norms=1,
        head_norms=_phi_head_norms, has_head_norm_bias=True, is_partly_rotary=True,
        is_parallel=True,
    ),
    "phi3": Family(
        names=Names(dropout="resid_pdrop"), is_fused_qkv=True, is_fused_gate=True,
        windows=everywhere, is_partly_rotary=True,
    ),
    "olmo": replace(BIASED_ATTENTION, norm="plain"),
    "olmo2": replace(BIASED_ATTENTION, head_norms=whole, has_wide_norm=True),
    "olmo3": replace(
        BIASED_ATTENTION, head_norms=whole, windows=by_layer(other_than_every(4)),
        has_wide_norm=True,
    ),
    "starcoder2": replace(
        UNGATED, names=Names(dropout="residual_dropout", embedding_dropout="embedding_dropout"),
        qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias", windows=everywhere,
    ),
    "glm": Family(qkv_bias="attention_bias", is_fused_gate=True, is_partly_rotary=True),
    "glm4": Family(
        qkv_bias="attention_bias", is_fused_gate=True, norms=4, is_partly_rotary=True
    ),
    "cohere": replace(COHERE, head_norms=_cohere_head_norms),
    "cohere2": replace(
        COHERE, windows=by_layer(other_than_every(4, "sliding_window_pattern"))
    ),
    "granite": LLAMA,
    "stablelm": Family(
        names=Names(dropout="hidden_dropout"), qkv_bias="use_qkv_bias", norm="layer",
        norms=_stablelm_norms, head_norms=_stablelm_head_norms, is_partly_rotary=True,
        is_parallel="use_parallel_residual",
    ),
    "smollm3": replace(LLAMA, windows=by_layer(plain_layers)),
    "ernie4_5": Family(
        names=UNDROPPED, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias"
    ),
    "seed_oss": Family(
        names=Names(dropout="residual_dropout"), qkv_bias="attention_bias",
        output_bias="attention_out_bias", mlp_bias="mlp_bias",
    ),
    "nemotron": replace(
        UNGATED, qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
        is_partly_rotary=True,
    ),
    "exaone4": Family(
        head_norms=each_head, windows=by_layer(other_than_every(4, "sliding_window_pattern"))
    ),
    "arcee": replace(LLAMA, is_gated=False),
    "cwm": Family(mlp_bias="mlp_bias", windows=by_layer(after_each_fourth)),
    "helium": Family(
        qkv_bias="attention_bias", mlp_bias="mlp_bias", has_wide_norm=True
    ),
    "hunyuan_v1_dense": replace(BIASED_ATTENTION, head_norms=each_head),
    "internlm3": LLAMA,
    "iquestcoder": LLAMA,
    "jais2": replace(
        UNGATED, qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias"
    ),
    "ministral": Family(windows=by_layer(every_layer)),
    "ministral3": Family(windows=everywhere),
    "vaultgemma": replace(CAPPED_GEMMA, windows=by_layer(other_than_every(2))),
    "mllama_text_model": Family(names=Names(attention_dropout="dropout")),
}  # fmt: skip
"""By model_type."""
