"""Models of `transformers`, from their config classes, trained as their authors wrote them.

B: batch.  S: sequence.  T = B*S tokens.  d: width.  f: feed-forward width.  V: vocabulary.
L: layers.  H: heads.  K: key and value heads.  D: head dim.  E: experts, k of them per token.

The optimizer is AdamW, the dtype bfloat16 by autocast. Backward, a product is two products (the
gradients of input and weight), fused attention's two are five.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from tests.real.training import Loss, Training, check_training, train
from torchtally.trace import Phase
from torchtally.work import Kind

pytestmark = pytest.mark.one_case_in(4)

B, S, d, f, V, L, H, K, D, E, k = 2, 16, 128, 256, 1000, 2, 4, 2, 32, 4, 2
T = B * S

SIZES = {
    "vocab_size": V,
    "hidden_size": d,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": f,
}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**SIZES, **TOKENS, "num_key_value_heads": K}
WIDE_HEADS = {**GROUPED, "head_dim": D}


def ids() -> Tensor:
    return torch.randint(0, V, (B, S), device="cuda")


def on_text(model: nn.Module) -> Tensor:
    return model(input_ids=ids(), labels=ids()).loss


def on_padded_text(model: nn.Module) -> Tensor:
    mask = torch.ones(B, S, dtype=torch.long, device="cuda")
    return model(input_ids=ids(), labels=ids(), attention_mask=mask).loss


def on_images(model: nn.Module) -> Tensor:
    images = torch.randn(B, 3, 64, 64, device="cuda")
    return model(pixel_values=images, labels=torch.randint(0, 10, (B,), device="cuda")).loss


def on_sound(model: nn.Module) -> Tensor:
    return model(input_features=torch.randn(B, 80, 3000, device="cuda"), labels=ids()).loss


# The closed forms, forward. 2*T*n*m: every weight of an (n, m) matrix meets every token once.


def grouped_query(tokens: int = T) -> int:
    """Queries, keys and values, and the way out."""
    return 2 * tokens * (d * H * D + 2 * d * K * D + H * D * d)


def full_attention(tokens: int = T) -> int:
    """As many key and value heads as query heads: four square matrices."""
    return 2 * tokens * 4 * d * d


def gated(tokens: int = T) -> int:
    """SwiGLU and its like: gate, up, down."""
    return 2 * tokens * 3 * d * f


def plain(tokens: int = T) -> int:
    """Up, down."""
    return 2 * tokens * 2 * d * f


def experts(width: int) -> int:
    """The router, then k gated experts of this width for each token."""
    return 2 * T * d * E + T * k * 2 * 3 * d * width


def head(classes: int = V) -> int:
    return 2 * T * d * classes


def scores(queries: int, keys: int) -> int:
    """Queries by keys, weights by values."""
    return 2 * 2 * B * H * queries * keys * D


def mamba_products() -> int:
    """Width d doubles inside; N = 16 states; the step size has rank R = d/16.

    Without its CUDA kernels the scan is a Python loop: one (2d, N) by (N, 1) product a token.
    """
    N, R = 16, d // 16
    weights = d * 4 * d + 2 * d * (R + 2 * N) + R * 2 * d + 2 * d * d
    return L * (2 * T * weights + 2 * T * 2 * d * N) + head()


P, FRAMES = 17, 1500
"""ViT's 4 x 4 patches and a class token; Whisper's frames after a stride of two."""

VIT_PATCHES = 2 * B * 16 * d * (3 * 16 * 16)
WHISPER_FIRST = 2 * B * 3000 * d * (80 * 3)
WHISPER_SECOND = 2 * B * FRAMES * d * (d * 3)
MAMBA_CONVOLUTION = L * 2 * B * (S + 3) * 2 * d * 4


@dataclass(frozen=True)
class Case:
    """A model, its batch, and its FLOPs forward; backward follows, but for convolutions."""

    make: Callable[[], nn.Module]
    loss: Loss
    products: int
    attention: int
    convolutions: tuple[int, int] = (0, 0)
    """Forward, backward: the first layer has no gradient of its input."""


def model(kind: str, config: str, **sizes: object) -> Callable[[], nn.Module]:
    return lambda: getattr(hf, kind)(getattr(hf, config)(**sizes))


SELF_ATTENTION = L * scores(S, S)
DECODER = L * (grouped_query() + gated()) + head()

CASES = {
    "gpt2": Case(
        model("GPT2LMHeadModel", "GPT2Config", vocab_size=V, n_embd=d, n_layer=L, n_head=H,
              n_inner=f, bos_token_id=1, eos_token_id=2),
        on_text,
        L * (full_attention() + plain()) + head(),
        SELF_ATTENTION,
    ),
    "llama": Case(model("LlamaForCausalLM", "LlamaConfig", **GROUPED), on_text,
                  DECODER, SELF_ATTENTION),
    "qwen3": Case(model("Qwen3ForCausalLM", "Qwen3Config", **WIDE_HEADS), on_text,
                  DECODER, SELF_ATTENTION),
    "mistral": Case(model("MistralForCausalLM", "MistralConfig", **GROUPED), on_text,
                    DECODER, SELF_ATTENTION),
    "gemma": Case(model("GemmaForCausalLM", "GemmaConfig", **WIDE_HEADS), on_text,
                  DECODER, SELF_ATTENTION),
    "gemma3": Case(model("Gemma3ForCausalLM", "Gemma3TextConfig", **WIDE_HEADS), on_text,
                   DECODER, SELF_ATTENTION),
    "mixtral": Case(
        model("MixtralForCausalLM", "MixtralConfig", **GROUPED, num_local_experts=E,
              num_experts_per_tok=k),
        on_text,
        L * (grouped_query() + experts(f)) + head(),
        SELF_ATTENTION,
    ),
    "qwen3-moe": Case(
        model("Qwen3MoeForCausalLM", "Qwen3MoeConfig", **WIDE_HEADS, num_experts=E,
              num_experts_per_tok=k, moe_intermediate_size=f // 4),
        on_text,
        L * (grouped_query() + experts(f // 4)) + head(),
        SELF_ATTENTION,
    ),
    "bert": Case(
        model("BertForMaskedLM", "BertConfig", **SIZES),
        on_padded_text,
        L * (full_attention() + plain()) + 2 * T * d * d + head(),
        SELF_ATTENTION,
    ),
    "t5": Case(
        model("T5ForConditionalGeneration", "T5Config", vocab_size=V, d_model=d, d_kv=D, d_ff=f,
              num_layers=L, num_heads=H, decoder_start_token_id=0),
        on_text,
        L * (full_attention() + plain()) + L * (2 * full_attention() + plain()) + head(),
        3 * SELF_ATTENTION,
    ),
    "vit": Case(
        model("ViTForImageClassification", "ViTConfig", hidden_size=d, num_hidden_layers=L,
              num_attention_heads=H, intermediate_size=f, image_size=64, patch_size=16,
              num_labels=10),
        on_images,
        L * (full_attention(B * P) + plain(B * P)) + 2 * B * d * 10,
        L * scores(P, P),
        (VIT_PATCHES, VIT_PATCHES),
    ),
    "whisper": Case(
        model("WhisperForConditionalGeneration", "WhisperConfig", vocab_size=V, d_model=d,
              encoder_layers=L, decoder_layers=L, encoder_attention_heads=H,
              decoder_attention_heads=H, encoder_ffn_dim=f, decoder_ffn_dim=f, num_mel_bins=80,
              decoder_start_token_id=1, **TOKENS),
        on_sound,
        L * (full_attention(B * FRAMES) + plain(B * FRAMES))
        + L * (full_attention() + plain())
        + L * (full_attention(T) // 2 + full_attention(B * FRAMES) // 2)  # across: q, out; k, v
        + head(),
        L * (scores(FRAMES, FRAMES) + scores(S, S) + scores(S, FRAMES)),
        (WHISPER_FIRST + WHISPER_SECOND, WHISPER_FIRST + 2 * WHISPER_SECOND),
    ),
    "mamba": Case(
        model("MambaForCausalLM", "MambaConfig", vocab_size=V, hidden_size=d, num_hidden_layers=L,
              state_size=16, **TOKENS),
        on_text,
        mamba_products(),
        0,
        (MAMBA_CONVOLUTION, 2 * MAMBA_CONVOLUTION),
    ),
}  # fmt: skip


@cache
def trained(name: str) -> Training:
    """Each model is trained once, when the first test needs it."""
    return train(CASES[name].make, CASES[name].loss)


@pytest.mark.parametrize("name", CASES)
def test_training_a_model_costs_its_closed_form(name: str) -> None:
    case, training = CASES[name], trained(name)
    check_training(training)
    products, attention = case.products, case.attention
    assert training.phases(Kind.PRODUCT) == (products, 2 * products, 0)
    assert training.phases(Kind.ATTENTION) == (attention, 5 * attention // 2, 0)
    assert training.phases(Kind.CONVOLUTION) == (*case.convolutions, 0)
    assert not training.placeholders


def test_experts_share_the_tokens_of_a_batch_equally() -> None:
    """Grouped products see T*k rows, whichever expert each goes to."""
    training = trained("mixtral")
    routed = [entry for entry in training.ledger.reported if entry.call.name == "aten._grouped_mm"]
    forward = [entry.cost.flops for entry in routed if entry.op.phase is Phase.FORWARD]
    gate_and_up, down = T * k * 2 * d * 2 * f, T * k * 2 * f * d
    assert forward == L * [gate_and_up, down]
    assert sum(entry.cost.flops for entry in routed) == 3 * L * (gate_and_up + down)


BALANCED = "assumed: balanced routing"


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["eager", "batched_mm"])
def test_experts_cost_the_same_in_a_loop_grouped_and_batched(way: str) -> None:
    """The loop looks up which tokens chose an expert: a shape made of values."""
    case = CASES["mixtral"]

    def make() -> nn.Module:
        model = case.make()
        model.set_experts_implementation(way)
        return model

    training = train(make, case.loss)
    check_training(training)
    assert training.phases(Kind.PRODUCT) == (case.products, 2 * case.products, 0)
    readers = {"eager": {"aten.nonzero", "aten._local_scalar_dense"}, "batched_mm": set()}[way]
    assert training.placeholders == {(reader, BALANCED) for reader in readers}


@cache
def trained_with_checkpoints(use_reentrant: bool) -> Training:
    def make() -> nn.Module:
        llama = hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED))
        llama.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        return llama

    return train(make, on_text)


@pytest.mark.thorough
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_computes_the_layers_again(use_reentrant: bool) -> None:
    """Without re-entering autograd, recomputation stops once the last saved tensor is back.

    That is the input of each layer's last product, so the product itself is not run again.
    """
    training = trained_with_checkpoints(use_reentrant)
    check_training(training)
    last_products = 0 if use_reentrant else L * 2 * T * f * d
    again = L * (grouped_query() + gated()) - last_products
    assert training.phases(Kind.PRODUCT) == (DECODER, 2 * DECODER, again)
    attention = SELF_ATTENTION
    assert training.phases(Kind.ATTENTION) == (attention, 5 * attention // 2, attention)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_a_checkpointed_layer_saves_nothing_but_its_result(use_reentrant: bool) -> None:
    """The residual stream, float32: what the next layer, or the last norm, starts from."""
    ledger = trained_with_checkpoints(use_reentrant).ledger
    layers = [entry for entry in ledger.reported if entry.site.module.startswith("model.layers.")]
    assert sum(layer.bytes_saved for layer in layers) == L * T * d * 4
