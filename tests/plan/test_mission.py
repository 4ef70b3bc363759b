"""The figures that resource accounting is taught with: time, size, bytes, scale marks."""

import pytest

from torchtally.chips import chip
from torchtally.plan.capacity import largest_parameters
from torchtally.plan.memory import bytes_per_parameter
from torchtally.plan.optimizers import OPTIMIZERS, optimizer
from torchtally.plan.recipes import RECIPES, recipe
from torchtally.plan.training import training_flops, training_s

DAY_S = 86400
H100_BF16 = 1979e12 / 2


def test_70b_on_15t_tokens_with_1024_h100s_takes_143_93_days() -> None:
    assert chip("H100-SXM").peak_flop_per_s("bfloat16") == pytest.approx(H100_BF16, rel=1e-3)
    flops = training_flops(70e9, 15e12)
    assert flops.value == 63 * 10**23
    days = training_s(flops, 1024, H100_BF16, 0.5).value / DAY_S
    assert round(days, 2) == 143.93


def test_146_days_are_those_of_1000_chips_at_a_rounded_speed() -> None:
    """Another telling of the same sum rounds 990e12 * 0.5 to 5e14, and so must round 1024 too."""
    assert round(training_s(6.3e24, 1000, 5e14, 1.0).value / DAY_S) == 146
    assert round(training_s(6.3e24, 1024, 5e14, 1.0).value / DAY_S) == 142


def test_the_largest_model_on_8_h100s_is_40b() -> None:
    each = bytes_per_parameter(recipe("fp32"), optimizer("adamw"))
    assert each.value == 4 + 4 + 8 == 16
    assert largest_parameters(8 * 80e9, each).value == 40 * 10**9


def test_activations_make_it_smaller() -> None:
    each = bytes_per_parameter(recipe("fp32"), optimizer("adamw"))
    assert largest_parameters(640e9, each, 40e9).value == 37_500_000_000
    assert largest_parameters(640e9, each, 700e9).value == 0


def test_gpt3_took_3_14e23_flops() -> None:
    assert training_flops(174.6e9, 300e9).value == pytest.approx(3.14e23, rel=0.002)


@pytest.mark.parametrize(
    ("name", "optimizer_name", "expected"),
    [
        ("fp32", "sgd", 4 + 4),
        ("fp32", "momentum", 4 + 4 + 4),
        ("fp32", "adagrad", 4 + 4 + 4),
        ("fp32", "rmsprop", 4 + 4 + 4),
        ("fp32", "adam", 4 + 4 + 8),
        ("fp32", "lion", 4 + 4 + 4),
        ("amp", "adamw", 4 + 4 + 8),
        ("bf16", "adamw", 2 + 2 + 4),
        ("mixed", "adamw", 2 + 2 + 4 + 8),
        ("megatron", "adamw", 2 + 4 + 4 + 8),
        ("fp8", "adamw", 2 + 4 + 4 + 8),
    ],
)
def test_bytes_a_parameter(name: str, optimizer_name: str, expected: int) -> None:
    assert bytes_per_parameter(recipe(name), optimizer(optimizer_name)).value == expected


def test_every_recipe_and_optimizer_is_found_by_its_name() -> None:
    assert all(recipe(name) is precision for name, precision in RECIPES.items())
    assert all(optimizer(name) is method for name, method in OPTIMIZERS.items())
