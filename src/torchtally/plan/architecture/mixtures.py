"""Families with mixtures of experts: which layers have them, how many, what is shared."""

from collections.abc import Callable
from dataclasses import replace

from torchtally.plan.architecture.config_keys import Config
from torchtally.plan.architecture.families import Family, Names
from torchtally.plan.architecture.llama_like import BIASED_ATTENTION, UNDROPPED, each_head, whole
from torchtally.plan.architecture.model import Experts, LatentAttention
from torchtally.plan.architecture.prediction import modules_left_out
from torchtally.plan.architecture.windows import (
    by_layer,
    early_odd_layers,
    everywhere,
    late_layers_always,
    listed_layers,
    other_than_every,
    rotary_layers,
    where_used,
)

EXPERTS = ("num_local_experts", "num_experts")
"""transformers knows both spellings in these families."""
NORMALISES = "norm_topk_prob"


def _experts(
    config: Config,
    *,
    width: str = "intermediate_size",
    active: str = "num_experts_per_tok",
    experts: tuple[str, ...] = EXPERTS,
    shared_width: int = 0,
) -> Experts:
    return Experts(
        experts=config.size(*experts),
        active=config.size(active),
        width=config.size(width),
        is_gated=True,
        activation=config.text("hidden_act"),
        shared_width=shared_width,
    )


def _phi_experts(config: Config) -> Experts:
    return replace(_experts(config), is_router_linear=True)


def _mixtral_experts(config: Config) -> Experts:
    return replace(_experts(config), is_normalised=True, are_all_linear=True)


def _olmoe_experts(config: Config) -> Experts:
    return replace(_experts(config), is_normalised=config.flag(NORMALISES), are_all_linear=True)


def _narrow_experts(config: Config) -> Experts:
    plain = _experts(config, width="moe_intermediate_size")
    return replace(plain, is_normalised=config.flag(NORMALISES), are_all_linear=True)


def _qwen2_experts(config: Config) -> Experts:
    shared = config.size("shared_expert_intermediate_size")
    plain = _experts(config, width="moe_intermediate_size", shared_width=shared)
    return replace(plain, has_shared_gate=True, is_normalised=config.flag(NORMALISES))


def _gpt_oss_experts(config: Config) -> Experts:
    return replace(_experts(config), has_bias=True, has_router_bias=True, is_clamped=True)


def _deepseek_experts(config: Config) -> Experts:
    """Shared experts are one feed-forward, so many times as wide."""
    width = config.size("moe_intermediate_size")
    plain = _experts(
        config,
        width="moe_intermediate_size",
        experts=("n_routed_experts", "num_experts", "num_local_experts"),
        shared_width=width * config.count("n_shared_experts"),
    )
    return replace(
        plain, is_router_wide=True, is_normalised=config.flag(NORMALISES), are_all_linear=True
    )


def _deepseek2_experts(config: Config) -> Experts:
    """Its code takes no notice of norm_topk_prob."""
    plain = _deepseek_experts(config)
    return replace(plain, has_shared_bias=config.flag("mlp_bias"), is_normalised=False)


def _ernie_experts(config: Config) -> Experts:
    width = config.size("moe_intermediate_size")
    plain = _experts(
        config,
        width="moe_intermediate_size",
        experts=("moe_num_experts",),
        active="moe_k",
        shared_width=width * config.count("moe_num_shared_experts"),
    )
    return replace(
        plain,
        has_shared_bias=config.flag("use_bias"),
        is_router_wide=True,
        is_normalised=True,
        are_all_linear=True,
    )


def _llama4_experts(config: Config) -> Experts:
    """One shared expert, as wide as the others."""
    plain = _experts(config, shared_width=config.size("intermediate_size"))
    return replace(plain, are_all_run=True, is_router_linear=True)


def every_so_many(config: Config, layers: int) -> frozenset[int]:
    """Every `decoder_sparse_step`-th, but for `mlp_only_layers`: Qwen's."""
    step = config.size_or_none("decoder_sparse_step") or 1
    dense = config.layers_listed("mlp_only_layers", layers) or frozenset()
    return frozenset(range(step - 1, layers, step)) - dense


def _after_the_first(config: Config, layers: int) -> frozenset[int]:
    """All but the first `first_k_dense_replace`: DeepSeek's."""
    return frozenset(range(config.count("first_k_dense_replace"), layers))


def typed_layers(dense: int) -> Callable[[Config, int], frozenset[int]]:
    """Those that `mlp_layer_types` calls sparse, or else all but so many first ones."""

    def sparse(config: Config, layers: int) -> frozenset[int]:
        listed = config.list_or_none("mlp_layer_types")
        if listed is None:
            return frozenset(range(dense, layers))
        if len(listed) != layers:
            raise config.wrong(
                "mlp_layer_types", f"expected {layers} entries, one per layer, found {len(listed)}"
            )
        return frozenset(at for at, name in enumerate(listed) if name == "sparse")

    return sparse


def _ernie_layers(config: Config, layers: int) -> frozenset[int]:
    first, step = config.count("moe_layer_start_index"), config.setting("moe_layer_interval")
    last = layers - 1 if config.values.get("moe_layer_end_index") == -1 else None
    last = config.count("moe_layer_end_index") if last is None else last
    return frozenset(at for at in range(layers) if first <= at <= last and (at + 1) % step == 0)


def _llama4_layers(config: Config, layers: int) -> frozenset[int]:
    listed = config.layers_listed("moe_layers", layers)
    step = config.size_or_none("interleave_moe_layer_step") or 1
    return frozenset(range(step - 1, layers, step)) if listed is None else listed


def latent_of(config: Config) -> LatentAttention:
    has_bias = config.flag("attention_bias")
    return LatentAttention(
        heads=config.size("num_attention_heads"),
        query_rank=config.size_or_none("q_lora_rank"),
        kv_rank=config.size("kv_lora_rank"),
        plain_head_dim=config.size("qk_nope_head_dim"),
        rotary_head_dim=config.size("qk_rope_head_dim"),
        value_head_dim=config.size("v_head_dim"),
        has_bias=has_bias,
        has_output_bias=has_bias,
    )


def _glm_head_norms(config: Config, h: int, k: int, D: int) -> tuple[int, ...]:
    return (D, D) if config.flag("use_qk_norm") else ()


DEEPSEEK = Family(
    latent=latent_of,
    experts=_deepseek_experts,
    sparse_layers=_after_the_first,
    left_out=modules_left_out,
)

MIXTURES = {
    "mixtral": Family(experts=_mixtral_experts, windows=everywhere),
    "qwen2_moe": Family(
        qkv_bias="qkv_bias", experts=_qwen2_experts, sparse_layers=every_so_many,
        windows=by_layer(early_odd_layers),
    ),
    "qwen3_moe": replace(
        BIASED_ATTENTION, head_norms=each_head, experts=_narrow_experts,
        sparse_layers=every_so_many, windows=where_used,
    ),
    "olmoe": replace(BIASED_ATTENTION, head_norms=whole, experts=_olmoe_experts),
    "gpt_oss": replace(
        BIASED_ATTENTION, experts=_gpt_oss_experts, sinks=True,
        windows=by_layer(other_than_every(2)), has_wide_norm=True,
    ),
    "granitemoe": replace(BIASED_ATTENTION, experts=_experts),
    "phimoe": replace(
        BIASED_ATTENTION, experts=_phi_experts, head_bias="lm_head_bias", norm="layer",
        windows=everywhere,
    ),
    "glm4_moe": Family(
        qkv_bias="attention_bias", head_norms=_glm_head_norms, experts=_deepseek_experts,
        sparse_layers=_after_the_first, left_out=modules_left_out, is_partly_rotary=True,
    ),
    "dots1": replace(
        BIASED_ATTENTION, head_norms=each_head, experts=_deepseek_experts,
        sparse_layers=_after_the_first, windows=by_layer(late_layers_always),
    ),
    "ernie4_5_moe": Family(
        names=UNDROPPED, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias",
        head_bias="use_bias", experts=_ernie_experts, sparse_layers=_ernie_layers,
        left_out=modules_left_out,
    ),
    "deepseek_v2": replace(DEEPSEEK, experts=_deepseek2_experts, mlp_bias="mlp_bias"),
    "deepseek_v3": DEEPSEEK,
    "flex_olmo": replace(
        BIASED_ATTENTION, head_norms=whole, experts=_olmoe_experts, has_wide_norm=True
    ),
    "glm4_moe_lite": replace(DEEPSEEK, sparse_layers=typed_layers(1)),
    "mellum": replace(
        BIASED_ATTENTION, head_norms=each_head, experts=_narrow_experts,
        sparse_layers=typed_layers(0), windows=by_layer(listed_layers),
        left_out=modules_left_out,
    ),
    "minicpm3": Family(latent=latent_of, mlp_bias="mlp_bias"),
    "minimax_m2": Family(
        head_norms=whole, experts=_mixtral_experts, is_partly_rotary=True
    ),
    "solar_open": replace(BIASED_ATTENTION, experts=_deepseek_experts),
    "youtu": Family(latent=latent_of),
    "llama4_text": replace(
        BIASED_ATTENTION, names=Names(inner=("intermediate_size_mlp",)),
        experts=_llama4_experts, sparse_layers=_llama4_layers,
        windows=by_layer(rotary_layers, "attention_chunk_size"), is_chunked=True,
    ),
}  # fmt: skip
"""By model_type. DeepSeek-V3's and its heirs' correction of the router is a buffer, not trained."""
