"""Families that came from GPT-2: one matrix for queries, keys and values, biases, no gate."""

from dataclasses import replace

from torchtally.plan.architecture.config_keys import Config
from torchtally.plan.architecture.families import Family, Names
from torchtally.plan.architecture.windows import alternating_types

GPT2_NAMES = Names(
    width=("n_embd", "hidden_size"),
    layers=("n_layer", "num_hidden_layers"),
    heads=("n_head", "num_attention_heads"),
    kv_heads=(),
    inner=("n_inner",),
    context=("n_positions", "max_position_embeddings"),
    activation="activation_function",
    dropout="resid_pdrop",
    embedding_dropout="embd_pdrop",
    attention_dropout="attn_pdrop",
)


def as_many_as_heads(config: Config, heads: int) -> int:
    return heads


def _learned_positions(config: Config) -> int:
    return config.size("n_positions", "max_position_embeddings")


def _opt_positions(config: Config) -> int:
    """OPT's table has two rows more than positions."""
    return config.size("max_position_embeddings") + 2


def _opt_norm(config: Config) -> str:
    return "layer" if config.flag("layer_norm_elementwise_affine") else "plain"


def _opt_has_final_norm(config: Config) -> bool:
    return config.flag("do_layer_norm_before") and not config.flag("_remove_final_layer_norm")


def _bigcode_kv_heads(config: Config, heads: int) -> int:
    return 1 if config.flag("multi_query") else heads


def _falcon_kv_heads(config: Config, heads: int) -> int:
    """Falcon's heads of keys and values, as in modeling_falcon: `num_kv_heads` counts in the new
    architecture alone.
    """
    if config.flag("new_decoder_architecture"):
        return config.size_or_none("num_kv_heads") or heads
    return 1 if config.flag("multi_query") else heads


def _falcon_norms(config: Config) -> int:
    if not config.flag("parallel_attn"):
        return 2
    is_new = config.flag("new_decoder_architecture")
    return config.size_or_none("num_ln_in_parallel_attn") or (2 if is_new else 1)


def _turns_a_part(config: Config) -> bool:
    """Whether GPT-J and CodeGen turn a part of each head: where `rotary_dim` is null, heads
    whole.
    """
    return config.size_or_none("rotary_dim") is not None


WIDE = Family(kv_heads=as_many_as_heads, has_wide_inner=True, is_gated=False, norm="layer")
GPT2 = replace(
    WIDE, names=GPT2_NAMES, qkv_bias=True, output_bias=True, mlp_bias=True, is_fused_qkv=True,
    is_rotary=False, positions=_learned_positions,
)  # fmt: skip
GPTJ = replace(
    WIDE, names=GPT2_NAMES, mlp_bias=True, head_bias=True, norms=1,
    is_partly_rotary=_turns_a_part, is_parallel=True, is_written_out=True,
)  # fmt: skip
"""Attention beside the feed-forward, after one norm: CodeGen's too."""

GPT_LIKE = {
    "gpt2": GPT2,
    "gpt_bigcode": replace(GPT2, kv_heads=_bigcode_kv_heads),
    "gptj": GPTJ,
    "codegen": replace(GPTJ, is_fused_qkv=True),
    "gpt_neo": replace(
        WIDE, names=Names(
            layers=("num_layers", "num_hidden_layers"), heads=("num_heads", "num_attention_heads"),
            activation="activation_function", dropout="resid_dropout",
            embedding_dropout="embed_dropout",
        ),
        output_bias=True, mlp_bias=True, is_rotary=False, windows=alternating_types,
        positions=_learned_positions, is_written_out=True,
    ),
    "gpt_neox": Family(
        names=Names(dropout="hidden_dropout", embedding_dropout="hidden_dropout"),
        kv_heads=as_many_as_heads, is_gated=False, qkv_bias="attention_bias",
        output_bias="attention_bias", mlp_bias=True, is_fused_qkv=True, norm="layer",
        is_partly_rotary=True, is_parallel="use_parallel_residual",
    ),
    "opt": Family(
        names=Names(inner=("ffn_dim",), activation="activation_function", dropout="dropout"),
        kv_heads=as_many_as_heads, is_gated=False, qkv_bias="enable_bias",
        output_bias="enable_bias", mlp_bias="enable_bias", is_rotary=False, norm=_opt_norm,
        positions=_opt_positions, embedding_width="word_embed_proj_dim",
        has_final_norm=_opt_has_final_norm,
    ),
    "bloom": replace(
        WIDE, names=Names(
            width=("hidden_size", "n_embed"), layers=("n_layer", "num_hidden_layers"),
            heads=("n_head", "num_attention_heads"), inner=("n_inner",),
            context=("seq_length",), activation="activation", dropout="hidden_dropout",
        ),
        qkv_bias=True, output_bias=True, mlp_bias=True, is_fused_qkv=True, is_rotary=False,
        has_embedding_norm=True, is_written_out=True,
    ),
    "falcon": replace(
        WIDE, names=Names(
            width=("hidden_size", "n_embed"), layers=("num_hidden_layers", "n_layer"),
            heads=("num_attention_heads", "n_head"), inner=("ffn_hidden_size",),
            activation="activation", dropout="hidden_dropout",
        ),
        kv_heads=_falcon_kv_heads, qkv_bias="bias", output_bias="bias", mlp_bias="bias",
        is_fused_qkv=True, norms=_falcon_norms, is_parallel="parallel_attn",
        has_attention_dropout="alibi",
    ),
    "mpt": replace(
        WIDE, names=Names(
            width=("d_model", "hidden_size"), layers=("n_layers", "num_hidden_layers"),
            heads=("n_heads", "num_attention_heads"), inner=("n_inner",),
            context=("max_seq_len",), activation="activation",
            dropout="attn_config.attn_pdrop", attention_dropout="attn_config.attn_pdrop",
        ),
        is_fused_qkv=True, is_rotary=False, norm="unbiased", is_written_out=True,
    ),
}  # fmt: skip
"""By model_type. No file says BLOOM's and MPT's activation: their rows of defaults do. MPT's code
knows one dropout for all, whatever its file calls resid_pdrop and emb_pdrop."""
