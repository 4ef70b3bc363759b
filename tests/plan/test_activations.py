"""Activations by hand, by the published table, and by laws.

s: sequence.  b: batch.  h: width.  a: heads.  t: tensor parallelism.  v: vocabulary.  L: layers.
"""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.kept_activations import activations
from tests.plan.models import models
from torchtally.errors import UsageError
from torchtally.plan.activations.kept import (
    embedding_activation_bytes,
    head_activation_bytes,
    held_cast_bytes,
    layer_activation_bytes,
    layer_cast_bytes,
    layer_saved,
    working_activation_bytes,
)
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.setting import AttentionKernel, Implementation, setting_of
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.model import Experts, FeedForward, Layer, Model, SelfAttention
from torchtally.plan.flops import Recompute
from torchtally.plan.recipes import RECIPES, recipe
from torchtally.units import Unit

# Korthikanti et al. 2022, arXiv 2205.05198 --------------------------------------------------------


def korthikanti(h: int, a: int, layers: int = 1, v: int = 51200) -> Model:
    """Their GPT: feed-forward of four widths, dropout, learned positions."""
    kind = Layer(
        count=layers,
        attention=SelfAttention(
            heads=a, kv_heads=a, head_dim=h // a, has_bias=True, has_output_bias=True,
            is_fused=True, is_rotary=False,
        ),
        feed_forward=FeedForward(width=4 * h, is_gated=False, activation="gelu", has_bias=True),
    )  # fmt: skip
    return Model(
        name="GPT", width=h, vocabulary=v, kinds=(kind,), is_tied=True, norm="layer",
        positions=2048, dropout=0.1,
    )  # fmt: skip


MEGATRON: dict[str, Any] = {"kernel": AttentionKernel.MATH, "implementation": Implementation.FUSED}
SIZES = ((2048, 1, 12288, 96), (2048, 4, 6144, 64), (1024, 2, 1024, 16))


PUBLISHED = [how for how in Recompute if how is not Recompute.OPERATORS]
"""Korthikanti 2022. By operators, chips that share a layer keep more: what they have reduced."""


def table_2(s: int, b: int, h: int, a: int, t: int, is_parallel: bool, how: Recompute) -> Fraction:
    """Bytes of one layer, by the rows of their table 2."""
    if how is Recompute.FULL:
        return Fraction(2 * s * b * h, t if is_parallel else 1)
    outside = Fraction(10, t if is_parallel else 1)
    scores = 0 if how is Recompute.SELECTIVE else Fraction(5 * a * s, h * t)
    return s * b * h * (outside + Fraction(24, t) + scores)


@pytest.mark.parametrize("how", PUBLISHED)
@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize("t", [1, 2, 8])
@pytest.mark.parametrize("sizes", SIZES)
def test_a_layer_as_published(
    sizes: tuple[int, int, int, int], t: int, is_parallel: bool, how: Recompute
) -> None:
    """Without parallelism and recomputation sbh (34 + 5as/h)."""
    s, b, h, a = sizes
    model = korthikanti(h, a)
    at = setting_of(
        model, b, s, recipe("megatron"), recompute=how, tensor=t,
        is_sequence_parallel=is_parallel, **MEGATRON,
    )  # fmt: skip
    layer_bytes = layer_activation_bytes(at, model.kinds[0])
    assert layer_bytes.value == table_2(s, b, h, a, t, is_parallel, how)


def test_their_layer_without_anything_shared() -> None:
    """34 * 2048 * 12288 + 5 * 96 * 2048 * 2048 bytes: 2.9 GB for each of GPT-3's layers."""
    model = korthikanti(12288, 96)
    layer_bytes = layer_activation_bytes(
        setting_of(model, 1, 2048, recipe("megatron"), **MEGATRON), model.kinds[0]
    )
    assert layer_bytes.value == 34 * 2048 * 12288 + 5 * 96 * 2048 * 2048 == 2868903936


@pytest.mark.parametrize("t", [1, 8])
def test_outside_the_layers_as_published(t: int) -> None:
    """Section 4.3: sbh/t for the embedding's dropout, 4 sbh/t (1 + v/h) for the last norm, the
    output projection and the loss. We add 8 bytes for each token id and position.
    """
    s, b, h, v = 2048, 1, 12288, 51200
    model = korthikanti(h, 96, v=v)
    options: dict[str, Any] = {**MEGATRON, "tensor": t, "is_sequence_parallel": True}
    embedding = embedding_activation_bytes(setting_of(model, b, s, recipe("megatron"), **options))
    assert embedding.value == s * b * h // t + 8 * s * b + 8 * s
    head = head_activation_bytes(setting_of(model, b, s, recipe("megatron"), **options))
    assert head.value == 4 * s * b * h // t * (h + v) // h


# By hand ------------------------------------------------------------------------------------------


def llama(*, heads: int = 8, kv_heads: int = 2, inner: int = 224, **more: Any) -> Model:
    """Heads of 8."""
    kind = Layer(
        count=3,
        attention=SelfAttention(heads=heads, kv_heads=kv_heads, head_dim=8, **more),
        feed_forward=FeedForward(width=inner, is_gated=True, activation="silu"),
    )
    return Model(name="l", width=64, vocabulary=1000, kinds=(kind,), is_tied=False)


def of_layer(model: Model, how: str, **options: Any) -> int:
    """Bytes a token of one layer, by 4 sequences of 32."""
    layer_bytes = layer_activation_bytes(
        setting_of(model, 4, 32, recipe(how), **options), model.kinds[0]
    )
    assert layer_bytes.value % 128 in (0, 16), "16 bytes of a random state, the rest by token"
    return int(layer_bytes.value) // 128


def test_a_llama_layer_in_bfloat16() -> None:
    """Each norm: its input in float32, a scale, the normed input, the product's: 8 d + 4."""
    norms = 2 * (8 * 64 + 4)
    attention = 2 * (8 + 2 + 2) * 8 + 2 * 64 + 4 * 8  # queries, keys, values; result; log-sum-exp
    feed_forward = 2 * 4 * 224  # gate, its activation, up, their product
    assert of_layer(llama(), "bf16") == norms + attention + feed_forward


def test_a_llama_layer_in_float32() -> None:
    """Input, normed input and product of each norm; all else twice as large as in bfloat16."""
    norms = 2 * (12 * 64 + 4)
    attention = 4 * (8 + 2 + 2) * 8 + 4 * 64 + 4 * 8
    assert of_layer(llama(), "fp32") == norms + attention + 4 * 4 * 224


def test_a_llama_layer_under_autocast() -> None:
    """Each of five products keeps its own cast of the norm's result; matrices are cast as well."""
    norms = 2 * (8 * 64 + 4) + 2 * (3 + 2) * 64
    attention = 2 * (8 + 2 + 2) * 8 + 2 * 64 + 4 * 8
    matrices = 2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 224
    casts = layer_cast_bytes(setting_of(llama(), 1, 1, recipe("amp")), llama().kinds[0])
    assert casts.value == 2 * matrices
    whole = layer_activation_bytes(
        setting_of(llama(), 4, 32, recipe("amp")), llama().kinds[0]
    ).value
    assert whole - casts.value - 16 == 128 * (norms + attention + 2 * 4 * 224)


def test_scores_that_are_kept() -> None:
    """In float32: of queries, keys and values 4 bytes for every head's, of scores 4 S; the result
    in bfloat16 for the output projection.
    """
    flash = 2 * (8 + 2 + 2) * 8 + 4 * 8
    math = 3 * 4 * 8 * 8 + 4 * 8 * 32
    difference = of_layer(llama(), "bf16", kernel=AttentionKernel.MATH) - of_layer(llama(), "bf16")
    assert difference == math - flash


def test_selectively_made_again_attention_keeps_what_a_fused_kernel_keeps() -> None:
    selective = of_layer(
        llama(), "bf16", kernel=AttentionKernel.MATH, recompute=Recompute.SELECTIVE
    )
    assert selective == of_layer(llama(), "bf16") - 4 * 8  # but the log-sum-exp
    how: dict[str, Any] = {"kernel": AttentionKernel.MATH, "recompute": Recompute.SELECTIVE}
    again = working_activation_bytes(setting_of(llama(), 4, 32, recipe("bf16"), **how))
    everything = of_layer(llama(), "bf16", kernel=AttentionKernel.MATH)
    assert again.value == 128 * (everything - selective)


def test_a_fused_layer_keeps_inputs_alone() -> None:
    """2 d for each norm's input and result; no activation of the gate."""
    layer_weights = of_layer(llama(), "megatron", implementation=Implementation.FUSED)
    assert layer_weights == 8 * 64 + 2 * (8 + 2 + 2) * 8 + 2 * 64 + 4 * 8 + 2 * 3 * 224


def test_a_mask_for_a_window_is_kept_and_repeats_keys() -> None:
    """2 S bytes a token, and keys and values of 8 heads instead of 2: from 32 tokens on."""
    within, beyond = of_layer(llama(window=33), "bf16"), of_layer(llama(window=32), "bf16")
    assert within == of_layer(llama(), "bf16")
    assert beyond - within == 2 * 32 + 2 * 2 * (8 - 2) * 8


def test_heads_of_keys_are_on_every_chip_when_there_are_fewer_than_chips() -> None:
    two, eight = (
        of_layer(llama(), "bf16", tensor=t, is_sequence_parallel=True) * t for t in (2, 8)
    )
    assert eight - two == pytest.approx(2 * 2 * (8 - 2) * 8, abs=8)


def test_experts_keep_a_row_for_every_choice() -> None:
    """In bfloat16, 2 of 16 experts: rows in and out, gate and up, activation, product; weights and
    orders of rows; the router's input is the norm's result, its scores float32.
    """
    kind = Layer(
        count=1,
        attention=SelfAttention(heads=8, kv_heads=8, head_dim=8),
        feed_forward=Experts(experts=16, active=2, width=32, is_gated=True, activation="silu"),
    )
    model = Model(name="m", width=64, vocabulary=100, kinds=(kind,), is_tied=False)
    kept = {saved.name: saved.bytes.value // 128 for saved in layer_saved(
        setting_of(model, 4, 32, recipe("bf16")), kind)}  # fmt: skip
    assert kept["rows for experts"] == kept["rows from experts"] == 2 * 2 * 64
    assert kept["gate and up"] == 2 * 2 * 2 * 32
    assert kept["weights of rows"] == 4 * 2
    assert kept["order of rows"] == 8 * 3 * 2
    assert kept["scores of experts"] == 4 * 16


def test_full_recomputation_keeps_inputs_and_works_on_one_layer() -> None:
    model = llama()
    kept_tensors = activations(model, 4, 32, recipe("bf16"), recompute=Recompute.FULL)
    assert kept_tensors.layers[0].value == 3 * 128 * 64 * 2
    assert kept_tensors.working.value == 128 * of_layer(model, "bf16") + 16
    kept = kept_tensors.embedding.value + kept_tensors.layers[0].value
    assert kept_tensors.total.value == kept + max(
        kept_tensors.head.value, kept_tensors.working.value
    )


def test_an_input_that_is_kept_anyway_is_not_made_again() -> None:
    """In float32 a layer's input is its first norm's; in bfloat16 that has a copy of its own."""
    working_bytes = working_activation_bytes(
        setting_of(llama(), 4, 32, recipe("fp32"), recompute=Recompute.FULL)
    )
    assert working_bytes.value == 128 * (of_layer(llama(), "fp32") - 4 * 64)


def test_autocast_holds_casts_of_all_layers_until_the_forward_pass_is_over() -> None:
    model = llama()
    matrices = 3 * (2 * 64 * 64 + 2 * 64 * 16 + 3 * 64 * 224) + 64 * 1000
    assert held_cast_bytes(setting_of(model, 1, 1, recipe("amp"))).value == 2 * matrices
    assert held_cast_bytes(setting_of(model, 1, 1, recipe("bf16"))).value == 0


def test_every_byte_of_a_layer_is_some_tensors() -> None:
    model = llama()
    kept = layer_saved(setting_of(model, 4, 32, recipe("bf16")), model.kinds[0])
    whole = layer_activation_bytes(setting_of(model, 4, 32, recipe("bf16")), model.kinds[0])
    assert sum(saved.bytes.value for saved in kept) == whole.value
    assert all(saved.name and saved.why for saved in kept)
    assert all(saved.bytes.value == saved.elements.value * saved.itemsize_bytes for saved in kept)


# Laws ---------------------------------------------------------------------------------------------

MODELS = models()
RECIPE = st.sampled_from(list(RECIPES.values()))
SMALL = st.integers(1, 64)
OPTIONS = st.fixed_dictionaries(
    {
        "kernel": st.sampled_from(list(AttentionKernel)),
        "implementation": st.sampled_from(list(Implementation)),
        "recompute": st.sampled_from(PUBLISHED),
    }
)


@given(model=MODELS, batch=SMALL, sequence=SMALL, how=RECIPE, options=OPTIONS)
def test_more_tokens_keep_no_less(
    model: Model, batch: int, sequence: int, how: Any, options: Any
) -> None:
    least = activations(model, batch, sequence, how, **options)
    assert least.total.unit is Unit.BYTES
    for more in ((batch + 1, sequence), (batch, sequence + 1)):
        assert activations(model, *more, how, **options).total.value >= least.total.value


@given(model=MODELS, batch=SMALL, sequence=SMALL, how=RECIPE, options=OPTIONS)
def test_more_chips_keep_no_more(
    model: Model, batch: int, sequence: int, how: Any, options: Any
) -> None:
    """Each; to a byte for each tensor, which is rounded."""
    alone = activations(model, batch, sequence, how, **options).total.value
    parallel = {"tensor": 2, "is_sequence_parallel": True}
    for more in ({"tensor": 2}, parallel, {"context": 2}):
        total = activations(model, batch, sequence, how, **options, **more).total.value
        assert total <= alone + 64 * (model.layers + 3)


@given(model=MODELS, batch=SMALL, sequence=SMALL, how=RECIPE)
def test_making_again_keeps_no_more(model: Model, batch: int, sequence: int, how: Any) -> None:
    sizes = [
        sum(layer.value for layer in activations(model, batch, sequence, how, recompute=it_).layers)
        for it_ in (Recompute.FULL, Recompute.SELECTIVE, Recompute.NONE)
    ]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("options", [{"tensor": 0}, {"context": -1}])
def test_no_chips_at_all(options: Any) -> None:
    with pytest.raises(UsageError, match="parallelism over"):
        activations(llama(), 1, 8, recipe("bf16"), **options)


def test_which_kernel_pytorch_takes() -> None:
    """Float32 with grouped heads has no fused kernel; half precision, or Megatron's, always has."""
    grouped, own = known_model("Llama 3 8B"), known_model("GPT-2 124M")
    eager, fused = Implementation.EAGER, Implementation.FUSED
    assert usual_kernel(grouped, recipe("fp32"), 1024, eager) is AttentionKernel.MATH
    assert usual_kernel(grouped, recipe("fp32"), 1024, fused) is AttentionKernel.FLASH
    assert usual_kernel(grouped, recipe("amp"), 1024, eager) is AttentionKernel.FLASH
    assert usual_kernel(own, recipe("fp32"), 1024, eager) is AttentionKernel.FLASH
    windowed = known_model("Mistral 7B")
    window = windowed.kinds[0].attention.window
    assert window is not None
    assert usual_kernel(windowed, recipe("fp32"), window - 1, eager) is AttentionKernel.MATH
    assert usual_kernel(windowed, recipe("fp32"), window, eager) is AttentionKernel.FLASH
