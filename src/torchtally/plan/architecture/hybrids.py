"""Families with recurrences in attention's place, in all layers or in most."""

from dataclasses import replace

from torchtally.plan.architecture.config_keys import Config, excerpt
from torchtally.plan.architecture.families import Family, LayerParts, Names
from torchtally.plan.architecture.llama_like import BIASED_ATTENTION, LLAMA, each_head, whole
from torchtally.plan.architecture.mixtures import every_so_many, latent_of, typed_layers
from torchtally.plan.architecture.model import Experts
from torchtally.plan.architecture.prediction import modules_left_out
from torchtally.plan.mixers.convolution import ShortConvolution
from torchtally.plan.mixers.delta import GatedDelta
from torchtally.plan.mixers.lightning import Lightning
from torchtally.plan.mixers.mamba import Mamba
from torchtally.plan.mixers.mamba2 import Mamba2
from torchtally.plan.mixers.rwkv import TimeMixing

ATTENDS, RECURS, BOTH = LayerParts(), LayerParts(False, True), LayerParts(True, True)
UNFED = LayerParts(has_attention=False, has_recurrence=True, has_feed_forward=False)
WORDS = {
    "full_attention": True,
    "attention": True,
    "linear_attention": False,
    "mamba": False,
    "conv": False,
}
"""By what a file calls a layer, whether it attends; its other spellings are of older files."""
KEY = "layer_types"


def _attending_layers(config: Config, layers: int, *keys: str) -> tuple[bool, ...] | None:
    """Which layers attend, where the file lists them."""
    for key in keys or (KEY,):
        listed = config.list_or_none(key)
        if listed is None:
            continue
        if len(listed) != layers:
            raise config.wrong(
                key, f"expected {layers} entries, one per layer, found {len(listed)}"
            )
        for name in listed:
            if name not in WORDS:
                raise config.wrong(
                    key, f"expected one of {', '.join(WORDS)}, found {excerpt(name)}"
                )
        return tuple(WORDS[name] for name in listed)
    return None


def _parts(attends: tuple[bool, ...]) -> tuple[LayerParts, ...]:
    return tuple(ATTENDS if yes else RECURS for yes in attends)


def _every_recurs(config: Config, layers: int) -> tuple[LayerParts, ...]:
    return (UNFED,) * layers


def _every_recurs_and_is_fed(config: Config, layers: int) -> tuple[LayerParts, ...]:
    return (RECURS,) * layers


def _every_does_both(config: Config, layers: int) -> tuple[LayerParts, ...]:
    return (BOTH,) * layers


def _attends_every_fourth(config: Config, layers: int) -> tuple[LayerParts, ...]:
    """Qwen3-Next's, by `full_attention_interval` where the file has it."""
    every = config.size_or_none("full_attention_interval") or 4
    return _parts(
        _attending_layers(config, layers) or tuple((at + 1) % every == 0 for at in range(layers))
    )


def _attends_by_turns(config: Config, layers: int) -> tuple[LayerParts, ...]:
    return _parts(_attending_layers(config, layers) or tuple(at % 2 == 0 for at in range(layers)))


def _bamba_parts(config: Config, layers: int) -> tuple[LayerParts, ...]:
    attends = config.layers_listed("attn_layer_indices", layers) or frozenset()
    return _parts(tuple(at in attends for at in range(layers)))


def _jamba_parts(config: Config, layers: int) -> tuple[LayerParts, ...]:
    period, offset = config.setting("attn_layer_period"), config.count("attn_layer_offset")
    return _parts(tuple(at % period == offset for at in range(layers)))


def _jamba_sparse(config: Config, layers: int) -> frozenset[int]:
    period, offset = config.setting("expert_layer_period"), config.count("expert_layer_offset")
    return frozenset(at for at in range(layers) if at % period == offset)


def _granite_parts(config: Config, layers: int) -> tuple[LayerParts, ...]:
    return _parts(_attending_layers(config, layers, KEY, "layers_block_type") or (False,) * layers)


def _lfm2_parts(config: Config, layers: int) -> tuple[LayerParts, ...]:
    attends = config.layers_listed("full_attn_idxs", layers)
    every = tuple(attends is None or at in attends for at in range(layers))
    return _parts(_attending_layers(config, layers) or every)


def _kimi_parts(config: Config, layers: int) -> tuple[LayerParts, ...]:
    """Its published file numbers layers from one."""
    table = config.below("linear_attn_config")
    full = table.list_or_none("full_attn_layers") if table else None
    listed = None if full is None else tuple(at + 1 in full for at in range(layers))
    every = tuple(at > 0 and at % 4 == 0 for at in range(layers))
    return _parts(_attending_layers(config, layers) or listed or every)


# Mixers -------------------------------------------------------------------------------------------


def _mamba(config: Config) -> Mamba:
    return Mamba(
        inner=config.setting("expand") * config.size("hidden_size"),
        state_size=config.size("state_size"),
        rank=_rank(config, "time_step_rank"),
        kernel=config.setting("conv_kernel"),
        has_bias=config.flag("use_bias"),
        has_convolution_bias=config.flag("use_conv_bias"),
    )


def _rank(config: Config, key: str) -> int:
    """Rank; where the file says "auto", a sixteenth of the width."""
    if config.values.get(key) in (None, "auto"):
        return -(-config.size("hidden_size") // 16)
    return config.size(key)


def _jamba(config: Config) -> Mamba:
    return Mamba(
        inner=config.setting("mamba_expand") * config.size("hidden_size"),
        state_size=config.setting("mamba_d_state"),
        rank=_rank(config, "mamba_dt_rank"),
        kernel=config.setting("mamba_d_conv"),
        has_bias=config.flag("mamba_proj_bias"),
        has_convolution_bias=config.flag("mamba_conv_bias"),
        has_norms=True,
    )


def _mamba2(config: Config) -> Mamba2:
    return Mamba2(
        heads=config.size("num_heads"),
        head_dim=config.size("head_dim"),
        groups=config.setting("n_groups"),
        state_size=config.size("state_size"),
        kernel=config.setting("conv_kernel"),
        chunk=config.setting("chunk_size"),
        has_bias=config.flag("use_bias"),
        has_convolution_bias=config.flag("use_conv_bias"),
        is_bound=True,
    )


def _mamba2_within(config: Config) -> Mamba2:
    """Mamba 2 sizes under the names that Bamba, Granite 4 and Falcon-H1 give them."""
    heads = config.size("mamba_n_heads")
    inner = config.size_or_none("mamba_d_ssm") if config.model_type == "falcon_h1" else None
    inner = inner or config.setting("mamba_expand") * config.size("hidden_size")
    return Mamba2(
        heads=heads,
        head_dim=inner // heads,
        groups=config.setting("mamba_n_groups"),
        state_size=config.size("mamba_d_state"),
        kernel=config.setting("mamba_d_conv"),
        chunk=config.setting("mamba_chunk_size"),
        has_bias=config.flag("mamba_proj_bias"),
        has_convolution_bias=config.flag("mamba_conv_bias"),
        has_norm=config.model_type != "falcon_h1" or config.flag("mamba_rms_norm"),
        is_bound=config.model_type == "falcon_h1",
    )


def _delta(config: Config, projections: tuple[tuple[str, ...], ...]) -> GatedDelta:
    return GatedDelta(
        key_heads=config.size("linear_num_key_heads"),
        value_heads=config.size("linear_num_value_heads"),
        key_dim=config.size("linear_key_head_dim"),
        value_dim=config.size("linear_value_head_dim"),
        kernel=config.setting("linear_conv_kernel_dim"),
        projections=projections,
    )


def _qwen3_next(config: Config) -> GatedDelta:
    return _delta(config, (("q", "k", "v", "z"), ("b", "a")))


def _qwen3_5(config: Config) -> GatedDelta:
    return _delta(config, (("q", "k", "v"), ("z",), ("b",), ("a",)))


def _olmo(config: Config) -> GatedDelta:
    return _delta(config, (("q",), ("k",), ("v",), ("a",), ("b",), ("z",)))


def _kimi(config: Config) -> GatedDelta:
    table = config.below("linear_attn_config")
    if table is not None:
        heads, D = table.size("num_heads"), table.size("head_dim")
        kernel = table.size("short_conv_kernel_size")
    else:
        heads, D = config.size("linear_num_heads"), config.size("linear_head_dim")
        kernel = config.setting("linear_conv_kernel_dim")
    return GatedDelta(
        key_heads=heads, value_heads=heads, key_dim=D, value_dim=D, kernel=kernel,
        projections=(("q",), ("k",), ("v",), ("b",)), is_by_channel=True,
    )  # fmt: skip


def _lightning(config: Config) -> Lightning:
    heads = config.size("num_attention_heads")
    D = config.size_or_none("head_dim") or config.size("hidden_size") // heads
    return Lightning(heads=heads, head_dim=D, block=config.setting("block_size"))


def _short(config: Config) -> ShortConvolution:
    return ShortConvolution(
        width=config.size("hidden_size"),
        kernel=config.setting("conv_L_cache"),
        has_bias=config.flag("conv_bias"),
    )


def _time_mixing(config: Config) -> TimeMixing:
    d = config.size("hidden_size")
    return TimeMixing(width=d, inner=config.size_or_none("attention_hidden_size") or d)


# All else -----------------------------------------------------------------------------------------


def _lfm2_inner(config: Config) -> int:
    """Two thirds of what the key says, rounded up."""
    inner = config.size("block_ff_dim", "intermediate_size")
    if not config.flag("block_auto_adjust_ff_dim"):
        return inner
    factor = config.values.get("block_ffn_dim_multiplier")
    inner = int((1.0 if factor is None else factor) * int(2 * inner / 3))
    step = config.setting("block_multiple_of")
    return -(-inner // step) * step


def _jamba_experts(config: Config) -> Experts:
    return Experts(
        experts=config.setting("num_experts"),
        active=config.setting("num_experts_per_tok"),
        width=config.size("intermediate_size"),
        is_gated=True,
        activation=config.text("hidden_act"),
    )


def _next_experts(config: Config) -> Experts:
    return Experts(
        experts=config.size("num_experts"),
        active=config.size("num_experts_per_tok"),
        width=config.size("moe_intermediate_size"),
        is_gated=True,
        activation=config.text("hidden_act"),
        shared_width=config.size("shared_expert_intermediate_size"),
        has_shared_gate=True,
        is_normalised=config.model_type != "qwen3_next" or config.flag("norm_topk_prob"),
        are_all_linear=config.model_type == "qwen3_next",
    )


def _kimi_experts(config: Config) -> Experts:
    width = config.size("moe_intermediate_size")
    return Experts(
        experts=config.size("num_experts", "num_local_experts"),
        active=config.size("num_experts_per_token", "num_experts_per_tok"),
        width=width,
        is_gated=True,
        activation=config.text("hidden_act"),
        shared_width=width * config.count("num_shared_experts", "n_shared_experts"),
        is_normalised=config.flag("moe_renormalize", "norm_topk_prob"),
        is_router_wide=True,
    )


def _minimax_experts(config: Config) -> Experts:
    return Experts(
        experts=config.size("num_local_experts"),
        active=config.size("num_experts_per_tok"),
        width=config.size("intermediate_size"),
        is_gated=True,
        activation=config.text("hidden_act"),
        is_normalised=True,
        are_all_linear=True,
    )


def _granite_experts(config: Config) -> Experts:
    return replace(
        _minimax_experts(config),
        is_normalised=False,
        is_shared_fused=True,
        are_all_linear=False,
        shared_width=config.size("shared_intermediate_size"),
    )


def _granite_sparse(config: Config, layers: int) -> frozenset[int]:
    return frozenset(range(layers)) if config.count("num_local_experts") else frozenset()


def _granite_inner(config: Config) -> int:
    return config.size("shared_intermediate_size")


RWKV_NAMES = Names(
    context=("context_length", "max_position_embeddings"),
    activation="activation",
    attention_dropout="",
)
NO_CONTEXT = Names(context=("n_positions",))
MAMBA = Family(names=NO_CONTEXT, recurrence=_mamba, parts=_every_recurs, norms=1, is_rotary=False)
NEXT = Family(
    qkv_bias="attention_bias", output_bias="attention_bias", head_norms=each_head, has_gate=True,
    has_wide_norm=True, is_partly_rotary=True, parts=_attends_every_fourth,
    left_out=modules_left_out,
)  # fmt: skip

HYBRIDS = {
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": replace(MAMBA, recurrence=_mamba2),
    "bamba": replace(
        LLAMA, recurrence=_mamba2_within, parts=_bamba_parts, is_partly_rotary=True
    ),
    "falcon_h1": replace(LLAMA, recurrence=_mamba2_within, parts=_every_does_both),
    "granitemoehybrid": replace(
        BIASED_ATTENTION, recurrence=_mamba2_within, parts=_granite_parts, inner=_granite_inner,
        is_fused_gate=True, experts=_granite_experts, sparse_layers=_granite_sparse,
    ),
    "jamba": Family(
        recurrence=_jamba, parts=_jamba_parts, is_rotary=False, experts=_jamba_experts,
        sparse_layers=_jamba_sparse,
    ),
    "kimi_linear": Family(
        recurrence=_kimi, parts=_kimi_parts, latent=latent_of, experts=_kimi_experts,
        names=Names(context=("model_max_length",)), sparse_layers=typed_layers(1),
    ),
    "lfm2": Family(
        names=Names(activation="", attention_dropout=""), recurrence=_short, parts=_lfm2_parts,
        inner=_lfm2_inner, head_norms=each_head,
    ),
    "minimax": Family(
        recurrence=_lightning, parts=_attends_by_turns, experts=_minimax_experts
    ),
    "olmo_hybrid": replace(
        BIASED_ATTENTION, recurrence=_olmo, parts=_attends_every_fourth, head_norms=whole,
        has_wide_norm=True,
    ),
    "qwen3_next": replace(
        NEXT, recurrence=_qwen3_next, experts=_next_experts, sparse_layers=every_so_many
    ),
    "qwen3_5_text": replace(NEXT, recurrence=_qwen3_5),
    "qwen3_5_moe_text": replace(NEXT, recurrence=_qwen3_5, experts=_next_experts),
    "rwkv": Family(
        names=RWKV_NAMES, recurrence=_time_mixing, parts=_every_recurs_and_is_fed, norm="layer",
        has_embedding_norm=True, is_embedding_norm_recomputed=True, is_rotary=False,
        is_gated=False, has_wide_inner=True, has_receptance=True,
    ),
}  # fmt: skip
"""By model_type."""
