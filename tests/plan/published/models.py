"""Shapes of the models in published tables, as their authors give them."""

from torchtally.chips import chip
from torchtally.plan.architecture.lookup import model
from torchtally.plan.architecture.model import Experts, FeedForward, Layer, Model, SelfAttention

A100 = chip("A100-SXM").peak_flop_per_s("bfloat16")
H100 = chip("H100-SXM").peak_flop_per_s("bfloat16")
H100_FP8 = chip("H100-SXM").peak_flop_per_s("float8_e4m3fn")
V100 = chip("V100-SXM-16GB").peak_flop_per_s("float16")
TPU_V4 = chip("TPU-v4").peak_flop_per_s("bfloat16")


def gpt(
    layers: int,
    width: int,
    heads: int,
    vocabulary: int = 51_200,
    positions: int = 2048,
    *,
    has_bias: bool = True,
    is_tied: bool = True,
    has_final_norm: bool = False,
    dropout: float = 0.0,
) -> Model:
    """GPT-2's kind of decoder, with a feed-forward of four widths. Megatron-LM's counts leave out
    the last norm.
    """
    return Model(
        name="GPT",
        width=width,
        vocabulary=vocabulary,
        is_tied=is_tied,
        norm="layer",
        positions=positions,
        has_final_norm=has_final_norm,
        dropout=dropout,
        kinds=(
            Layer(
                count=layers,
                attention=SelfAttention(
                    heads=heads,
                    kv_heads=heads,
                    head_dim=width // heads,
                    has_bias=has_bias,
                    has_output_bias=has_bias,
                ),
                feed_forward=FeedForward(
                    width=4 * width, is_gated=False, activation="gelu", has_bias=has_bias
                ),
            ),
        ),
    )


def llama(layers: int, width: int, inner: int, heads: int, kv_heads: int, vocabulary: int) -> Model:
    """Llama's kind: gated feed-forward, RMS norms, rotary positions, a head of its own."""
    return Model(
        name="Llama",
        width=width,
        vocabulary=vocabulary,
        is_tied=False,
        kinds=(
            Layer(
                count=layers,
                attention=SelfAttention(heads=heads, kv_heads=kv_heads, head_dim=width // heads),
                feed_forward=FeedForward(width=inner, is_gated=True, activation="silu"),
            ),
        ),
    )


def llama3(size: str) -> Model:
    return model({"405B": "llama-3.1-405b"}.get(size, f"llama-3-{size.lower()}"))


def palm(layers: int, heads: int, width: int) -> Model:
    """Multi-query attention with heads of 256, gated feed-forward, one norm a layer, no biases."""
    return Model(
        name="PaLM",
        width=width,
        vocabulary=256_000,
        is_tied=True,
        kinds=(
            Layer(
                count=layers,
                norms=1,
                attention=SelfAttention(heads=heads, kv_heads=1, head_dim=256),
                feed_forward=FeedForward(width=4 * width, is_gated=True, activation="silu"),
            ),
        ),
    )


def chinchilla(
    layers: int,
    width: int,
    inner: int,
    heads: int,
    head_dim: int,
    *,
    has_relative_positions: bool = True,
) -> Model:
    """With one more matrix a layer, of relative positions, and a vocabulary of 32,000."""
    return Model(
        name="Chinchilla",
        width=width,
        vocabulary=32_000,
        is_tied=True,
        kinds=(
            Layer(
                count=layers,
                attention=SelfAttention(
                    heads=heads,
                    kv_heads=heads,
                    head_dim=head_dim,
                    has_relative_positions=has_relative_positions,
                ),
                feed_forward=FeedForward(width=inner, is_gated=False, activation="gelu"),
            ),
        ),
    )


def mixture_of_gpt(layers: int, width: int, experts: int) -> Model:
    """A GPT without biases whose every feed-forward is a choice of one among many."""
    return Model(
        name="GPT-MoE",
        width=width,
        vocabulary=51_200,
        is_tied=True,
        norm="layer",
        positions=2048,
        kinds=(
            Layer(
                count=layers,
                attention=SelfAttention(heads=12, kv_heads=12, head_dim=width // 12),
                feed_forward=Experts(
                    experts=experts, active=1, width=4 * width, is_gated=False, activation="gelu"
                ),
            ),
        ),
    )
