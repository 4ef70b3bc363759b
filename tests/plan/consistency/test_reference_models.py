"""Closed forms against the ledger of a traced run, model by model.

Parameters, gradients, optimizer state and FLOPs agree to the last digit. Activations agree to the
scalars that an attention kernel keeps, where `Reference.is_exact` says so, else within 2 %.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tests.plan.consistency.references import (
    HYBRIDS,
    LARGE,
    OTHERS,
    REFERENCES,
    Reference,
    model_of,
)
from tests.plan.consistency.traced import Traced, train
from tests.plan.kept_activations import Activations, activations
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.model import FeedForward, Model
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.flops import Recompute, token_flops
from torchtally.plan.memory import states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import Recipe, recipe
from torchtally.trace import Phase, Role
from torchtally.views.matrix_work import needed_flops, works_of
from torchtally.work.convention import Convention

pytestmark = pytest.mark.one_case_in(12)

PROMISED = 0.02
SCALAR_BYTES = 8
"""FlashAttention keeps three 8-byte numbers of a random state, the other kernels two."""
RECIPES = ("fp32", "amp", "bf16")


def closed(
    reference: Reference,
    model: Model,
    recipe: Recipe,
    recompute: Recompute,
    kernel: AttentionKernel | None = None,
) -> Activations:
    chosen = (
        kernel
        or reference.kernel
        or usual_kernel(model, recipe, reference.sequence, Implementation.EAGER)
    )
    return activations(
        model, reference.batch, reference.sequence, recipe, recompute=recompute, kernel=chosen
    )


def error_of(computed: float, traced: float) -> float:
    return abs(computed - traced) / traced


def check_states(traced: Traced, model: Model, recipe: Recipe) -> None:
    """Parameters, gradients and AdamW's moments: to the byte."""
    held = states(weights_of(model), recipe, optimizer("adamw"))
    assert held.parameters.value == traced.bytes_of(Role.PARAMETER)
    assert held.gradients.value == traced.bytes_of(Role.GRADIENT)
    assert held.optimizer.value == traced.bytes_of(Role.OPTIMIZER_STATE)


def check_flops(
    traced: Traced, reference: Reference, model: Model, attention: Convention = Convention.FULL
) -> None:
    """Model FLOPs of the steady step: to the last one."""
    tokens = reference.batch * reference.sequence
    per_token = token_flops(model, reference.sequence, attention=attention)
    assert (
        needed_flops(works_of(traced.ledger.reported), attention) == per_token.model.value * tokens
    )


def is_told_causal(reference: Reference, model: Model, recipe: Recipe) -> bool:
    """By `is_causal=True` to a fused kernel. Of a mask, and of products, nobody knows it."""
    window = getattr(model.kinds[0].attention, "window", None)
    is_masked = window is not None and window < reference.sequence
    kernel = usual_kernel(model, recipe, reference.sequence, Implementation.EAGER)
    return kernel is AttentionKernel.FLASH and not is_masked


def kept(sums: Activations) -> int:
    """All at the end of the forward pass."""
    return int(sums.embedding.value + sum(layer.value for layer in sums.layers) + sums.head.value)


def check_activations(
    traced: Traced, reference: Reference, model: Model, sums: Activations
) -> None:
    """At the first tick of the backward pass, and at the fullest moment."""
    ids_bytes = 8 * reference.batch * reference.sequence
    pairs = (
        (kept(sums), traced.kept_bytes),
        (sums.total.value, traced.most_kept_bytes + ids_bytes),
    )
    for closed_bytes, traced_bytes in pairs:
        assert error_of(closed_bytes, traced_bytes) < PROMISED
        if reference.is_exact:
            assert abs(closed_bytes - traced_bytes) <= SCALAR_BYTES * model.layers


THOROUGHLY = ("gpt2", "llama", "mixtral")
"""Under every recipe: fused projections with dropout, grouped heads, experts."""
ONCE = [
    (name, recipe_name)
    for n, name in enumerate(REFERENCES)
    for recipe_name in (RECIPES if name in THOROUGHLY else (RECIPES[n % 3],))
]


@pytest.mark.parametrize(("name", "recipe_name"), ONCE)
def test_closed_forms_are_the_ledgers(name: str, recipe_name: str) -> None:
    reference, model, how = REFERENCES[name], model_of(name), recipe(recipe_name)
    traced = train(reference, how)
    check_states(traced, model, how)
    check_flops(traced, reference, model)
    if is_told_causal(reference, model, how):
        check_flops(traced, reference, model, Convention.CAUSAL)
    check_activations(traced, reference, model, closed(reference, model, how, Recompute.NONE))


@pytest.mark.parametrize(
    ("name", "recipe_name"),
    [
        (name, reference.recipe or ("amp", "bf16")[n % 2])
        for n, (name, reference) in enumerate(OTHERS.items())
    ],
)
def test_closed_forms_are_the_ledgers_for_other_families(name: str, recipe_name: str) -> None:
    reference, model, how = OTHERS[name], model_of(name), recipe(recipe_name)
    traced = train(reference, how)
    check_states(traced, model, how)
    check_flops(traced, reference, model)
    check_activations(traced, reference, model, closed(reference, model, how, Recompute.NONE))


@pytest.mark.thorough("plan/test_hybrid_sums.py has its sums by hand")
@pytest.mark.parametrize("recipe_name", ["fp32", "bf16"])
def test_kimi_linear_is_the_ledgers(recipe_name: str) -> None:
    """FLOPs by the published algorithm, whose scores transformers makes element by element."""
    reference, model, how = HYBRIDS["kimi-linear"], model_of("kimi-linear"), recipe(recipe_name)
    traced = train(reference, how)
    check_states(traced, model, how)
    check_activations(traced, reference, model, closed(reference, model, how, Recompute.NONE))
    counted = needed_flops(works_of(traced.ledger.reported), Convention.FULL)
    per_token = token_flops(model, reference.sequence).model.value
    assert error_of(per_token * reference.batch * reference.sequence, counted) < PROMISED


@pytest.mark.thorough("the sums by hand beside it, of other models")
@pytest.mark.parametrize("recipe_name", ["fp32", "bf16", "amp"])
def test_rwkv_is_the_ledgers(recipe_name: str) -> None:
    """To the scalars, with every token of its loop."""
    reference, model, how = HYBRIDS["rwkv"], model_of("rwkv"), recipe(recipe_name)
    traced = train(reference, how)
    check_states(traced, model, how)
    check_flops(traced, reference, model)
    check_activations(traced, reference, model, closed(reference, model, how, Recompute.NONE))


@pytest.mark.thorough("test_layers_that_are_made_again_keep_their_inputs, of other models")
def test_rwkvs_layers_that_are_made_again_keep_their_inputs() -> None:
    """Of the first one, in front of the embedding's norm."""
    reference, model, how = HYBRIDS["rwkv"], model_of("rwkv"), recipe("bf16")
    traced = train(reference, how, checkpointed=True)
    check_activations(traced, reference, model, closed(reference, model, how, Recompute.FULL))


FULLY = [
    *(("gpt2", "amp"), ("llama", "fp32"), ("mistral", "bf16"), ("gemma", "amp")),
    *(("mixtral", "amp"), ("deepseek-v3", "bf16")),
]


@pytest.mark.parametrize(("name", "recipe_name"), FULLY)
def test_layers_that_are_made_again_keep_their_inputs(name: str, recipe_name: str) -> None:
    reference, model, how = REFERENCES[name], model_of(name), recipe(recipe_name)
    traced = train(reference, how, checkpointed=True)
    check_states(traced, model, how)
    check_activations(traced, reference, model, closed(reference, model, how, Recompute.FULL))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "recipe_name"), [("qwen2", "bf16"), ("llama", "amp")])
def test_layers_that_keep_every_other_product(name: str, recipe_name: str) -> None:
    """Llama's seventh product, which no gradient reads, is kept all the same: of another category.

    Of Qwen 2 those of queries, keys and values have biases: the first of five is the output's.
    """
    reference, model, how = REFERENCES[name], model_of(name), recipe(recipe_name)
    traced = train(reference, how, by_operators=True)
    sums = closed(reference, model, how, Recompute.OPERATORS)
    tokens = reference.batch * reference.sequence
    unread = model.layers * tokens * model.width * how.activation_bytes * (name == "llama")
    assert abs(kept(sums) - unread - traced.kept_bytes) <= SCALAR_BYTES * model.layers
    assert error_of(sums.total.value - unread, traced.most_kept_bytes) < 3 * PROMISED
    works = works_of(traced.ledger.reported)
    again = sum(
        work.executed_flops(Convention.FULL) for work in works if work.phase is Phase.RECOMPUTE
    )
    inner = model.kinds[0].feed_forward
    assert isinstance(inner, FeedForward)
    # A checkpoint stops once the last saved tensor is back, before the layer's last product.
    stopped = 2 * model.layers * inner.width * model.width * (name == "qwen2")
    per_token = token_flops(model, reference.sequence, recompute=Recompute.OPERATORS).recompute
    assert again == (per_token.value - stopped) * tokens


@pytest.mark.thorough
@pytest.mark.parametrize("recipe_name", RECIPES)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_attention_that_keeps_its_scores(name: str, recipe_name: str) -> None:
    """PyTorch's attention without fused kernels: scores in float32, a mask of them with dropout."""
    reference, model, how = REFERENCES[name], model_of(name), recipe(recipe_name)
    traced = train(reference, how, is_math=True)
    check_activations(
        traced,
        reference,
        model,
        closed(reference, model, how, Recompute.NONE, AttentionKernel.MATH),
    )


@pytest.mark.thorough("the sums by hand beside it, of other models")
@pytest.mark.parametrize(
    ("name", "recipe_name", "recompute"),
    [
        ("gpt2-124m", "amp", Recompute.NONE),
        ("gpt2-124m", "fp32", Recompute.FULL),
        ("llama-3-8b-of-two-layers", "bf16", Recompute.NONE),
        ("llama-3-8b-of-two-layers", "amp", Recompute.FULL),
    ],
)
def test_models_of_real_width(name: str, recipe_name: str, recompute: Recompute) -> None:
    reference, model, how = LARGE[name], model_of(name), recipe(recipe_name)
    traced = train(reference, how, checkpointed=recompute is Recompute.FULL)
    check_states(traced, model, how)
    check_flops(traced, reference, model)
    check_activations(traced, reference, model, closed(reference, model, how, recompute))


@pytest.mark.thorough
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_hardware_flops_of_llama_with_checkpoints(use_reentrant: bool) -> None:
    """Every layer's forward pass once more. Checkpoints that do not re-enter autograd stop once the
    last saved tensor is back, which is before the layer's last product.

    A fused kernel's own making of scores in its backward is left out, as `needed_flops` does.
    """
    reference, model = REFERENCES["llama"], model_of("llama")
    traced = train(reference, recipe("bf16"), checkpointed=True, use_reentrant=use_reentrant)
    works = works_of(traced.ledger.reported)
    again = [work for work in works if work.phase is Phase.RECOMPUTE]
    repeated = sum(work.executed_flops(Convention.FULL) for work in again)
    flops = needed_flops(works, Convention.FULL) + repeated
    per_token = token_flops(model, reference.sequence, recompute=Recompute.FULL)
    tokens = reference.batch * reference.sequence
    inner = model.kinds[0].feed_forward
    left_out = 0 if use_reentrant else 2 * tokens * model.layers * inner.width * model.width
    assert flops == per_token.hardware.value * tokens - left_out


# The comparison can fail --------------------------------------------------------------------------


def another_attention(model: Model, **change: object) -> Model:
    kinds = (replace(kind, attention=replace(kind.attention, **change)) for kind in model.kinds)
    return replace(model, kinds=tuple(kinds))


def another_feed_forward(model: Model, **change: object) -> Model:
    kinds = (
        replace(kind, feed_forward=replace(kind.feed_forward, **change)) for kind in model.kinds
    )
    return replace(model, kinds=tuple(kinds))


@pytest.fixture(scope="module")
def llama() -> Traced:
    return train(REFERENCES["llama"], recipe("bf16"))


def test_one_bias_more_is_seen(llama: Traced) -> None:
    model = another_attention(model_of("llama"), has_output_bias=True)
    with pytest.raises(AssertionError):
        check_states(llama, model, recipe("bf16"))


def test_gradients_of_another_dtype_are_seen(llama: Traced) -> None:
    with pytest.raises(AssertionError):
        check_states(llama, model_of("llama"), replace(recipe("bf16"), gradients="float32"))


def test_one_head_more_is_seen(llama: Traced) -> None:
    model = another_attention(model_of("llama"), heads=7)
    with pytest.raises(AssertionError):
        check_flops(llama, REFERENCES["llama"], model)


WRONG: dict[str, Callable[[Model], Model]] = {
    "head norms": partial(another_attention, head_norm_sizes=(24, 24)),
    "gelu_new": partial(another_feed_forward, activation="gelu_new"),
    "ungated": partial(another_feed_forward, is_gated=False),
    "layer norm": partial(replace, norm="layer"),
    "dropout": partial(replace, dropout=0.1),
    "wide norm": partial(replace, has_wide_norm=True),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_one_term_too_much_or_too_little_is_seen(llama: Traced, mistake: str) -> None:
    reference, wrong = REFERENCES["llama"], WRONG[mistake](model_of("llama"))
    assert isinstance(wrong.kinds[0].feed_forward, FeedForward)
    with pytest.raises(AssertionError):
        check_activations(
            llama, reference, wrong, closed(reference, wrong, recipe("bf16"), Recompute.NONE)
        )


def test_scores_that_are_not_kept_are_seen(llama: Traced) -> None:
    reference, model = REFERENCES["llama"], model_of("llama")
    sums = closed(reference, model, recipe("bf16"), Recompute.NONE, AttentionKernel.MATH)
    with pytest.raises(AssertionError):
        check_activations(llama, reference, model, sums)
