"""Configurations for every family, small, with sizes that tell each part from the others."""

from typing import Any

Keys = dict[str, Any]

BASE: Keys = {
    "vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "intermediate_size": 56, "max_position_embeddings": 64,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
GPT: Keys = {"vocab_size": 101, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64}
GPT |= {"bos_token_id": None, "eos_token_id": None}
HEAD = {"head_dim": 10}
MOE: Keys = {"num_experts_per_tok": 2, "moe_intermediate_size": 26}
MIXTRAL: Keys = BASE | {"num_local_experts": 5, "num_experts_per_tok": 2}
DEEPSEEK: Keys = MOE | {"n_routed_experts": 5, "n_shared_experts": 3, "first_k_dense_replace": 1}
LATENT: Keys = BASE | DEEPSEEK | {
    "kv_lora_rank": 18, "q_lora_rank": 22, "qk_nope_head_dim": 12, "qk_rope_head_dim": 4,
    "v_head_dim": 14, "n_group": 1, "topk_group": 1, "num_key_value_heads": 6,
}  # fmt: skip
QWEN_MOE: Keys = BASE | MOE | {"num_experts": 5, "shared_expert_intermediate_size": 30}
ERNIE: Keys = BASE | {
    "moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 26, "moe_num_shared_experts": 3,
    "moe_layer_end_index": -1, "moe_layer_interval": 2,
}  # fmt: skip
NEO: Keys = {"vocab_size": 101, "hidden_size": 48, "num_layers": 4, "num_heads": 6}
NEO |= {"max_position_embeddings": 64, "window_size": 8}
NEO |= {"bos_token_id": None, "eos_token_id": None, "attention_types": [[["global", "local"], 2]]}
LLAMA4: Keys = MIXTRAL | HEAD | {"num_experts_per_tok": 1, "intermediate_size_mlp": 72}

HYBRID: Keys = BASE | {"num_hidden_layers": 2}
MAMBA: Keys = {"vocab_size": 101, "hidden_size": 48, "state_size": 10, "num_hidden_layers": 2}
RWKV: Keys = {"vocab_size": 101, "hidden_size": 48, "num_hidden_layers": 3, "context_length": 64}
MAMBA_2: Keys = HYBRID | {
    "mamba_n_heads": 8, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_d_state": 10,
    "mamba_chunk_size": 16,
}  # fmt: skip
DELTA: Keys = HYBRID | {
    "linear_key_head_dim": 10, "linear_value_head_dim": 14, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
DELTA_MOE: Keys = DELTA | HEAD | MOE | {"num_experts": 5, "shared_expert_intermediate_size": 30}
KIMI: Keys = BASE | {
    "num_experts": 5, "num_experts_per_token": 2, "moe_intermediate_size": 26,
    "num_shared_experts": 3, "linear_head_dim": 10, "linear_num_heads": 4, "kv_lora_rank": 18,
    "qk_nope_head_dim": 12, "qk_rope_head_dim": 4, "v_head_dim": 14, "num_key_value_heads": 6,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip

CASES: dict[str, tuple[str, Keys]] = {
    "gpt2": ("gpt2", GPT),
    "gpt2 with an inner width": ("gpt2", GPT | {"n_inner": 70}),
    "gpt_bigcode, one key": ("gpt_bigcode", GPT),
    "gpt_bigcode, all keys": ("gpt_bigcode", GPT | {"multi_query": False}),
    "gptj": ("gptj", GPT | {"rotary_dim": 4}),
    "codegen": ("codegen", GPT | {"rotary_dim": 4, "n_head": 4}),
    "gpt_neo": ("gpt_neo", NEO),
    "gpt_neo with an inner width": ("gpt_neo", NEO | {"intermediate_size": 70}),
    "gpt_neox": ("gpt_neox", BASE),
    "gpt_neox without attention's bias": ("gpt_neox", BASE | {"attention_bias": False}),
    "opt": ("opt", BASE | {"ffn_dim": 58, "word_embed_proj_dim": 48}),
    "opt with narrow embeddings": ("opt", BASE | {
        "ffn_dim": 58, "word_embed_proj_dim": 40, "do_layer_norm_before": False}),
    "opt without biases": ("opt", BASE | {
        "ffn_dim": 58, "word_embed_proj_dim": 48, "enable_bias": False,
        "layer_norm_elementwise_affine": False}),
    "bloom": ("bloom", {"vocab_size": 101, "hidden_size": 48, "n_layer": 3, "n_head": 6}),
    "falcon, one key": ("falcon", BASE | {"ffn_hidden_size": None}),
    "falcon, new": ("falcon", BASE | {
        "new_decoder_architecture": True, "num_kv_heads": 3, "ffn_hidden_size": 58}),
    "falcon, one norm": ("falcon", BASE | {
        "new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1}),
    "falcon, biased": ("falcon", BASE | {
        "parallel_attn": False, "bias": True, "multi_query": False, "alibi": True}),
    "mpt": ("mpt", {"d_model": 48, "n_heads": 6, "n_layers": 3, "vocab_size": 101}),
    "llama": ("llama", BASE),
    "llama, biased and tied": ("llama", BASE | HEAD | {
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", BASE | {"sliding_window": 8}),
    "qwen2": ("qwen2", BASE | {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", BASE | HEAD),
    "gemma": ("gemma", BASE | HEAD),
    "gemma2": ("gemma2", BASE | HEAD | {"sliding_window": 8}),
    "gemma3_text": ("gemma3_text", BASE | HEAD | {"sliding_window": 8, "num_hidden_layers": 7}),
    "phi": ("phi", BASE | {"qk_layernorm": True}),
    "phi3": ("phi3", BASE),
    "olmo": ("olmo", BASE),
    "olmo2": ("olmo2", BASE),
    "olmo3": ("olmo3", BASE | {"num_hidden_layers": 5, "sliding_window": 8}),
    "starcoder2": ("starcoder2", BASE),
    "glm": ("glm", BASE | HEAD),
    "glm4": ("glm4", BASE | HEAD),
    "cohere": ("cohere", BASE),
    "cohere2": ("cohere2", BASE | {"num_hidden_layers": 5, "sliding_window": 8}),
    "granite": ("granite", BASE),
    "stablelm": ("stablelm", BASE | {"use_qkv_bias": True}),
    "stablelm with norms of heads": ("stablelm", BASE | {
        "qk_layernorm": True, "use_parallel_residual": True}),
    "smollm3": ("smollm3", BASE),
    "ernie4_5": ("ernie4_5", BASE | HEAD | {"use_bias": True}),
    "seed_oss": ("seed_oss", BASE | HEAD),
    "nemotron": ("nemotron", BASE),
    "exaone4": ("exaone4", BASE | {"sliding_window": 8, "num_hidden_layers": 5}),
    "arcee": ("arcee", BASE),
    "mixtral": ("mixtral", MIXTRAL),
    "qwen2_moe": ("qwen2_moe", QWEN_MOE | {"mlp_only_layers": [1]}),
    "qwen3_moe": ("qwen3_moe", QWEN_MOE | HEAD | {"decoder_sparse_step": 2}),
    "olmoe": ("olmoe", MIXTRAL | {"num_experts": 5}),
    "gpt_oss": ("gpt_oss", MIXTRAL | HEAD | {"sliding_window": 8}),
    "granitemoe": ("granitemoe", MIXTRAL),
    "phimoe": ("phimoe", MIXTRAL | {"lm_head_bias": True, "attention_bias": True}),
    "glm4_moe": ("glm4_moe", BASE | DEEPSEEK | {
        "n_group": 1, "topk_group": 1, "attention_bias": True, "use_qk_norm": True}),
    "dots1": ("dots1", BASE | DEEPSEEK | {"max_window_layers": 2, "sliding_window": 8}),
    "ernie4_5_moe": ("ernie4_5_moe", ERNIE),
    "ernie4_5_moe, biased": ("ernie4_5_moe", ERNIE | {"use_bias": True}),
    "deepseek_v2": ("deepseek_v2", LATENT | {"attention_bias": True, "mlp_bias": True}),
    "deepseek_v2 lite": ("deepseek_v2", LATENT | {"q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", LATENT),
    "cwm": ("cwm", BASE | HEAD | {
        "num_hidden_layers": 5, "sliding_window": 8, "bos_token_id": 1}),
    "flex_olmo": ("flex_olmo", BASE | {"num_experts": 5, "num_experts_per_tok": 2}),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT | {"first_k_dense_replace": None}),
    "helium": ("helium", BASE | {"head_dim": 8}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", BASE | HEAD),
    "internlm3": ("internlm3", BASE | HEAD),
    "iquestcoder": ("iquestcoder", BASE | HEAD),
    "jais2": ("jais2", BASE | HEAD),
    "jais2 without biases": ("jais2", BASE | HEAD | {"attention_bias": False, "mlp_bias": False}),
    "mellum": ("mellum", BASE | HEAD | MOE | {"num_local_experts": 5}),
    "minicpm3": ("minicpm3", {key: LATENT[key] for key in LATENT if key not in DEEPSEEK}),
    "minimax_m2": ("minimax_m2", MIXTRAL | HEAD),
    "ministral": ("ministral", BASE | HEAD | {"sliding_window": 8}),
    "ministral3": ("ministral3", BASE | HEAD | {"sliding_window": 8}),
    "solar_open": ("solar_open", BASE | HEAD | MOE | {
        "n_routed_experts": 5, "n_shared_experts": 3}),
    "vaultgemma": ("vaultgemma", BASE | HEAD | {"sliding_window": 8}),
    "youtu": ("youtu", {key: LATENT[key] for key in LATENT if key not in DEEPSEEK}),
    "llama4_text": ("llama4_text", LLAMA4 | {"interleave_moe_layer_step": 2}),
    "llama4_text, all sparse": ("llama4_text", LLAMA4 | {"num_hidden_layers": 4}),
    "mamba": ("mamba", MAMBA | {"time_step_rank": 5}),
    "falcon_mamba, biased": ("falcon_mamba", MAMBA | {"time_step_rank": 5, "use_bias": True}),
    "mamba2": ("mamba2", MAMBA | {
        "num_heads": 8, "head_dim": 12, "n_groups": 2, "chunk_size": 16}),
    "bamba": ("bamba", MAMBA_2 | {"attn_layer_indices": [1]}),
    "falcon_h1": ("falcon_h1", MAMBA_2 | HEAD | {"mamba_d_ssm": 96}),
    "granitemoehybrid": ("granitemoehybrid", MAMBA_2 | {
        "layer_types": ["mamba", "attention"], "num_local_experts": 5, "num_experts_per_tok": 2,
        "shared_intermediate_size": 30}),
    "granitemoehybrid, dense": ("granitemoehybrid", MAMBA_2 | {
        "layer_types": ["mamba", "attention"], "num_local_experts": 0,
        "shared_intermediate_size": 30}),
    "jamba": ("jamba", MIXTRAL | {
        "num_experts": 5, "attn_layer_period": 3, "attn_layer_offset": 1, "mamba_dt_rank": 5,
        "mamba_d_state": 10, "expert_layer_period": 2, "expert_layer_offset": 1}),
    "kimi_linear": ("kimi_linear", KIMI),
    "lfm2": ("lfm2", HYBRID | {
        "layer_types": ["conv", "full_attention"], "block_multiple_of": 8}),
    "minimax": ("minimax", HYBRID | HEAD | {
        "num_local_experts": 5, "num_experts_per_tok": 2, "block_size": 16}),
    "olmo_hybrid": ("olmo_hybrid", DELTA | {"linear_num_key_heads": 4}),
    "qwen3_next": ("qwen3_next", DELTA_MOE),
    "qwen3_5_text": ("qwen3_5_text", DELTA | HEAD),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", DELTA_MOE),
    "rwkv": ("rwkv", RWKV),
    "rwkv, narrow and tied": ("rwkv", RWKV | {
        "attention_hidden_size": 36, "intermediate_size": 56, "tie_word_embeddings": True}),
}  # fmt: skip
"""Sizes are made up, and no two are equal where a mistake could hide."""
