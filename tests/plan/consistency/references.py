"""Reference models: small ones of transformers, made from their config classes with random weights.

Sizes are small, and no two of a model are alike, so that one put in another's place shows. Widths
are multiples of 8, as grouped products pad their rows to 16 bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from torchtally.plan.activations.setting import AttentionKernel
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.model import Model

VOCABULARY, LAYERS = 1000, 3
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 168, "num_hidden_layers": LAYERS,
    "num_attention_heads": 6, "intermediate_size": 424, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 24}
BY_WIDTH = {**SIZES, "num_key_value_heads": 2, "hidden_size": 144}


@dataclass(frozen=True, slots=True)
class Reference:
    """A model of transformers, and the batch it is traced with."""

    make: Callable[[], nn.Module]
    batch: int = 4
    sequence: int = 96
    kernel: AttentionKernel | None = None
    """Which transformers takes; None: PyTorch's best."""
    is_exact: bool = True
    """Activations agree to the scalars of an operator; else within the promised 2 %."""
    recipe: str | None = None
    """The one that it is traced under, where another one's is not promised."""

    @property
    def model(self) -> Model:
        """As the closed forms know it, from its configuration alone."""
        with torch.device("meta"):
            values = self.make().config.to_dict()
        return from_values(values, name=values["model_type"], place="its class")


def maker(kind: str, config: str, **sizes: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        # Not at the top: collecting the tests should not import transformers.
        import transformers

        module: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
        return module

    return make


REFERENCES = {
    "gpt2": Reference(
        maker("GPT2LMHeadModel", "GPT2Config", vocab_size=VOCABULARY, n_embd=160, n_layer=LAYERS,
             n_head=5, n_inner=424, n_positions=112, bos_token_id=1, eos_token_id=2),
    ),
    "llama": Reference(maker("LlamaForCausalLM", "LlamaConfig", **GROUPED)),
    "mistral": Reference(
        maker("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=40)
    ),
    "mistral-within-its-window": Reference(
        maker("MistralForCausalLM", "MistralConfig", **GROUPED, sliding_window=128)
    ),
    "qwen2": Reference(maker("Qwen2ForCausalLM", "Qwen2Config", **BY_WIDTH)),
    "qwen3": Reference(
        maker("Qwen3ForCausalLM", "Qwen3Config", **GROUPED, tie_word_embeddings=True)
    ),
    "gemma": Reference(
        maker("GemmaForCausalLM", "GemmaConfig", **{**GROUPED, "num_key_value_heads": 1})
    ),
    "phi3": Reference(maker("Phi3ForCausalLM", "Phi3Config", **BY_WIDTH)),
    "opt": Reference(
        maker("OPTForCausalLM", "OPTConfig", vocab_size=VOCABULARY, hidden_size=160,
             num_hidden_layers=LAYERS, num_attention_heads=5, ffn_dim=424,
             max_position_embeddings=112, word_embed_proj_dim=160),
        is_exact=False,  # positions of every sequence, though all are alike
    ),
    "gpt-neox": Reference(
        maker("GPTNeoXForCausalLM", "GPTNeoXConfig", vocab_size=VOCABULARY, hidden_size=160,
             num_hidden_layers=LAYERS, num_attention_heads=5, intermediate_size=424),
        is_exact=False,  # angles for a quarter of each head
    ),
    "mixtral": Reference(
        maker("MixtralForCausalLM", "MixtralConfig", **GROUPED, num_local_experts=5,
             num_experts_per_tok=2),
    ),
    "qwen2-moe": Reference(
        maker("Qwen2MoeForCausalLM", "Qwen2MoeConfig", **BY_WIDTH, num_experts=8,
             num_experts_per_tok=3, moe_intermediate_size=56, shared_expert_intermediate_size=208),
        is_exact=False,  # weights of rows in the activations' dtype
    ),
    "deepseek-v3": Reference(
        maker("DeepseekV3ForCausalLM", "DeepseekV3Config", **{**SIZES, "num_key_value_heads": 6},
             q_lora_rank=72, kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=16,
             v_head_dim=32, n_routed_experts=8, num_experts_per_tok=3, n_group=2, topk_group=1,
             n_shared_experts=2, moe_intermediate_size=56, first_k_dense_replace=1),
        is_exact=False,  # weights of rows in the activations' dtype
    ),
}  # fmt: skip

EIGHTHS = {"num_experts": 8, "num_experts_per_tok": 3}
LOCALS = {"num_local_experts": 8, "num_experts_per_tok": 3}
SHARED = {
    "n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 2, "topk_group": 1,
    "n_shared_experts": 2, "moe_intermediate_size": 56, "first_k_dense_replace": 1,
}  # fmt: skip
MAMBA_2 = {
    "mamba_n_heads": 8, "mamba_d_head": 36, "mamba_n_groups": 2, "mamba_d_state": 24,
    "mamba_chunk_size": 32,
}  # fmt: skip
HYBRIDS = {
    "bamba": Reference(
        maker("BambaForCausalLM", "BambaConfig", **{**BY_WIDTH, **MAMBA_2},
             attn_layer_indices=[1]),
        sequence=128, is_exact=False,
    ),
    "jamba": Reference(
        maker("JambaForCausalLM", "JambaConfig", **{**BY_WIDTH, "num_hidden_layers": 2},
             num_experts=8, num_experts_per_tok=3, mamba_d_state=10, mamba_dt_rank=16,
             attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2,
             expert_layer_offset=1, use_mamba_kernels=False),
        sequence=32, is_exact=False,
    ),
    "lfm2": Reference(
        maker("Lfm2ForCausalLM", "Lfm2Config", **BY_WIDTH,
             layer_types=["conv", "full_attention", "conv"], block_multiple_of=8),
        sequence=128, is_exact=False,
    ),
    "minimax": Reference(
        maker("MiniMaxForCausalLM", "MiniMaxConfig", **{**GROUPED, "num_hidden_layers": 2},
             num_local_experts=8, num_experts_per_tok=3, block_size=32),
        sequence=128, is_exact=False,
    ),
    "qwen3-next": Reference(
        maker("Qwen3NextForCausalLM", "Qwen3NextConfig", **{**GROUPED, "num_hidden_layers": 2},
             num_experts=8, num_experts_per_tok=3, moe_intermediate_size=56,
             shared_expert_intermediate_size=208, linear_num_key_heads=2,
             linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=32,
             layer_types=["linear_attention", "full_attention"]),
        sequence=128, is_exact=False,
    ),
    "olmo-hybrid": Reference(
        maker("OlmoHybridForCausalLM", "OlmoHybridConfig",
             **{**BY_WIDTH, "num_hidden_layers": 2}, linear_num_key_heads=4,
             linear_num_value_heads=4, linear_key_head_dim=24, linear_value_head_dim=32,
             layer_types=["linear_attention", "full_attention"]),
        sequence=128, is_exact=False,
    ),
    "kimi-linear": Reference(
        maker("KimiLinearForCausalLM", "KimiLinearConfig",
             **{**SIZES, **SHARED, "num_key_value_heads": 6, "num_hidden_layers": 2, "n_group": 1},
             q_lora_rank=None, kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=16,
             v_head_dim=32, linear_head_dim=24, linear_num_heads=4,
             layer_types=["linear_attention", "full_attention"],
             mlp_layer_types=["dense", "sparse"]),
        sequence=128, is_exact=False,
    ),
    "rwkv": Reference(
        maker("RwkvForCausalLM", "RwkvConfig", vocab_size=VOCABULARY, hidden_size=144,
             num_hidden_layers=3, attention_hidden_size=96, intermediate_size=424),
        batch=8, sequence=12,  # a loop over tokens
    ),
}  # fmt: skip
"""Their recurrences in plain torch, as transformers runs them without kernels of their own."""
OTHERS = {
    "gemma3": Reference(
        maker("Gemma3ForCausalLM", "Gemma3TextConfig", **GROUPED),
        is_exact=False,  # two kinds of angles, of which one is counted
    ),
    "olmo": Reference(
        maker("OlmoForCausalLM", "OlmoConfig", **BY_WIDTH),
        is_exact=False,  # angles in float32
    ),
    "olmo2": Reference(
        maker("Olmo2ForCausalLM", "Olmo2Config", **BY_WIDTH),
        is_exact=False,  # its norms multiply by the weight itself
    ),
    "phi": Reference(
        maker("PhiForCausalLM", "PhiConfig", **BY_WIDTH),
        is_exact=False,  # angles for half of each head
    ),
    "starcoder2": Reference(maker("Starcoder2ForCausalLM", "Starcoder2Config", **BY_WIDTH)),
    "stablelm": Reference(
        maker("StableLmForCausalLM", "StableLmConfig", **BY_WIDTH),
        is_exact=False,  # angles for a quarter of each head
    ),
    "granite": Reference(maker("GraniteForCausalLM", "GraniteConfig", **BY_WIDTH)),
    "glm4": Reference(
        maker("Glm4ForCausalLM", "Glm4Config", **GROUPED),
        is_exact=False,  # angles for half of each head
    ),
    "falcon": Reference(
        maker("FalconForCausalLM", "FalconConfig", vocab_size=VOCABULARY, hidden_size=160,
             num_hidden_layers=LAYERS, num_attention_heads=5, ffn_hidden_size=424,
             bos_token_id=1, eos_token_id=2),
        kernel=AttentionKernel.MATH,  # one head of keys for all, which it broadcasts
        is_exact=False,  # two indices a layer
    ),
    "bloom": Reference(
        maker("BloomForCausalLM", "BloomConfig", vocab_size=VOCABULARY, hidden_size=160,
             n_layer=LAYERS, n_head=5),
    ),
    "mpt": Reference(
        maker("MptForCausalLM", "MptConfig", vocab_size=VOCABULARY, d_model=168, n_layers=LAYERS,
             n_heads=6),
        is_exact=False,
    ),
    "cohere": Reference(
        maker("CohereForCausalLM", "CohereConfig", **BY_WIDTH),
        is_exact=False,
    ),
    "gemma2": Reference(
        maker("Gemma2ForCausalLM", "Gemma2Config", **GROUPED),
    ),
    "gpt-oss": Reference(
        maker("GptOssForCausalLM", "GptOssConfig", **GROUPED, **LOCALS),
        recipe="bf16", is_exact=False,
    ),
    "qwen3-moe": Reference(
        maker("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **GROUPED, **EIGHTHS,
             moe_intermediate_size=56, norm_topk_prob=True),
        is_exact=False,  # weights of rows in the activations' dtype
    ),
    "deepseek-v2": Reference(
        maker("DeepseekV2ForCausalLM", "DeepseekV2Config", **{**SIZES, "num_key_value_heads": 6},
             q_lora_rank=72, kv_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=16,
             v_head_dim=32, n_routed_experts=8, num_experts_per_tok=3, n_group=1, topk_group=1,
             n_shared_experts=2, moe_intermediate_size=56, first_k_dense_replace=1),
        is_exact=False,  # angles as complex numbers
    ),
    "olmo3": Reference(
        maker("Olmo3ForCausalLM", "Olmo3Config", **BY_WIDTH),
        is_exact=False,  # its norms multiply by the weight itself
    ),
    "olmoe": Reference(
        maker("OlmoeForCausalLM", "OlmoeConfig", **BY_WIDTH, **EIGHTHS),
        is_exact=False,  # weights of rows in the activations' dtype
    ),
    "granite-moe": Reference(
        maker("GraniteMoeForCausalLM", "GraniteMoeConfig", **BY_WIDTH, **LOCALS),
        is_exact=False,  # scores of chosen experts alone
    ),
    "phi-moe": Reference(
        maker("PhimoeForCausalLM", "PhimoeConfig",
             **BY_WIDTH, **{**LOCALS, "num_experts_per_tok": 2}),
        is_exact=False,  # experts chosen one after the other
    ),
    "glm4-moe": Reference(
        maker("Glm4MoeForCausalLM", "Glm4MoeConfig", **BY_WIDTH, **SHARED),
        is_exact=False,  # angles for half of each head
    ),
    "dots1": Reference(
        maker("Dots1ForCausalLM", "Dots1Config", **BY_WIDTH, **SHARED, norm_topk_prob=True),
        is_exact=False,  # weights of rows in the activations' dtype
    ),
    "ernie4.5": Reference(
        maker("Ernie4_5ForCausalLM", "Ernie4_5Config", **GROUPED),
        is_exact=False,  # angles in float32
    ),
    "glm": Reference(
        maker("GlmForCausalLM", "GlmConfig", **GROUPED),
        is_exact=False,  # angles for half of each head
    ),
    "seed-oss": Reference(maker("SeedOssForCausalLM", "SeedOssConfig", **GROUPED)),
    "smollm3": Reference(maker("SmolLM3ForCausalLM", "SmolLM3Config", **BY_WIDTH)),
    "gpt-bigcode": Reference(
        maker("GPTBigCodeForCausalLM", "GPTBigCodeConfig", vocab_size=VOCABULARY, n_embd=160,
             n_layer=LAYERS, n_head=5, n_inner=424, n_positions=112, bos_token_id=1,
             eos_token_id=2),
    ),
    "stablelm-in-parallel": Reference(
        maker("StableLmForCausalLM", "StableLmConfig", **BY_WIDTH, use_parallel_residual=True),
        is_exact=False,  # angles for a quarter of each head
    ),
    "gpt-neox-in-sequence": Reference(
        maker("GPTNeoXForCausalLM", "GPTNeoXConfig", vocab_size=VOCABULARY, hidden_size=160,
             num_hidden_layers=LAYERS, num_attention_heads=5, intermediate_size=424,
             use_parallel_residual=False, hidden_dropout=0.1),
        is_exact=False,  # angles for a quarter of each head
    ),
    "nemotron": Reference(
        maker("NemotronForCausalLM", "NemotronConfig", **BY_WIDTH),
        is_exact=False,  # angles for half of each head
        recipe="bf16",
    ),
    "arcee": Reference(maker("ArceeForCausalLM", "ArceeConfig", **BY_WIDTH), recipe="bf16"),
    "exaone4": Reference(maker("Exaone4ForCausalLM", "Exaone4Config", **BY_WIDTH), recipe="bf16"),
    "phi-with-dropout": Reference(
        maker("PhiForCausalLM", "PhiConfig", **BY_WIDTH, embd_pdrop=0.1),
        is_exact=False,  # angles for half of each head
    ),
}  # fmt: skip
"""More families, each under one recipe."""

LARGE = {
    "gpt2-124m": Reference(maker("GPT2LMHeadModel", "GPT2Config"), sequence=1024),
    "llama-3-8b-of-two-layers": Reference(
        maker("LlamaForCausalLM", "LlamaConfig", vocab_size=128256, hidden_size=4096,
             intermediate_size=14336, num_hidden_layers=2, num_attention_heads=32,
             num_key_value_heads=8, head_dim=128),
        batch=1, sequence=8192,
    ),
}  # fmt: skip
"""Of real width."""


@cache
def model_of(name: str) -> Model:
    """A reference's model, read once."""
    return (REFERENCES | OTHERS | HYBRIDS | LARGE)[name].model
