"""The deep linear model by hand, and how its figures go."""

from hypothesis import given
from hypothesis import strategies as st

from torchtally.plan.deep_linear import (
    deep_linear_activation_bytes,
    deep_linear_flops,
    deep_linear_parameters,
    deep_linear_weights,
)
from torchtally.plan.memory import states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import RECIPES, recipe

SIZE = st.integers(1, 512)
LAYERS = st.integers(0, 64)
RECIPE = st.sampled_from(list(RECIPES.values()))


def test_a_training_in_float32_with_adagrad() -> None:
    """P = 128*128*2 + 128 = 32896; 4 * (3 * 32896 + 8*128*2) bytes."""
    assert deep_linear_parameters(128, 2).value == 32896
    assert deep_linear_activation_bytes(128, 2, 8, recipe("fp32")).value == 4 * 8 * 128 * 2
    held = states(deep_linear_weights(128, 2), recipe("fp32"), optimizer("adagrad"))
    assert held.total.value == 4 * 3 * 32896


@given(width=SIZE, layers=LAYERS)
def test_weights_are_the_parameters(width: int, layers: int) -> None:
    weights = deep_linear_weights(width, layers)
    assert sum(weight.elements for weight in weights) == deep_linear_parameters(width, layers).value


@given(width=SIZE, layers=LAYERS, batch=SIZE)
def test_a_step_is_six_flops_for_a_parameter_and_row_but_for_the_batchs_gradient(
    width: int, layers: int, batch: int
) -> None:
    P = width * width * layers + width
    first = width * width if layers else width
    flops = deep_linear_flops(width, layers, batch)
    assert flops.forward.value == 2 * batch * P
    assert flops.total.value == 6 * batch * P - 2 * batch * first


def test_without_layers_it_is_one_product_each_way() -> None:
    flops = deep_linear_flops(16, 0, 4)
    assert (flops.forward.value, flops.backward.value) == (2 * 4 * 16, 2 * 4 * 16)


@given(width=SIZE, layers=LAYERS, batch=SIZE, how=RECIPE)
def test_more_of_anything_keeps_no_less(width: int, layers: int, batch: int, how) -> None:  # type: ignore[no-untyped-def]
    least = deep_linear_activation_bytes(width, layers, batch, how).value
    for more in (
        (width + 1, layers, batch),
        (width, layers + 1, batch),
        (width, layers, batch + 1),
    ):
        assert deep_linear_activation_bytes(*more, how).value >= least


def test_autocast_keeps_casts() -> None:
    """B = 4, D = 8, L = 3, 2 bytes each: results 4*8*3, the batch 4*8, two matrices and the last
    vector, whose inputs need gradients: 2*64 + 8.
    """
    layer_bytes = deep_linear_activation_bytes(8, 3, 4, recipe("amp"))
    assert layer_bytes.value == 2 * (96 + 32 + 136)
