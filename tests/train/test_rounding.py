"""Updates that bfloat16 is too coarse for: rounded by chance, or kept in a float32 copy."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchtally.checkpoints.seeds import derive_seed
from torchtally.errors import UsageError
from torchtally.plan.memory import states_of_count
from torchtally.plan.optimizers import optimizer as known_optimizer
from torchtally.train.footprint import footprint
from torchtally.train.models.cruncher import Cruncher
from torchtally.train.optimizers.build import build
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.precision import precision
from torchtally.train.rounding import round_stochastically
from torchtally.train.wide_update import WideUpdate

pytestmark = pytest.mark.one_case_in(3)

ADAMW = OptimizerConfig(name="adamw", lr=1e-3, weight_decay=0.1)
DRAWS = 20_000


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Stochastic rounding


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_mean_of_many_draws_is_the_number(share: float, sign: int) -> None:
    """Between 1 and the next bfloat16, 1 + 2**-7. A draw's deviation is at most half of the gap."""
    gap = 2.0**-7
    number = sign * (1 + share * gap)
    drawn = round_stochastically(torch.full((DRAWS,), number), generator())
    assert set(drawn.float().tolist()) == {sign * 1.0, sign * (1 + gap)}
    assert drawn.double().mean().item() == pytest.approx(number, abs=5 * gap / 2 / DRAWS**0.5)


@given(st.floats(-(2.0**127), 2.0**127, width=32), st.integers(0, 2**31))
@settings(deadline=None)
def test_a_draw_is_a_neighbour(number: float, seed: int) -> None:
    wide = torch.tensor([number])
    drawn = round_stochastically(wide, generator(seed)).float()
    below = (wide.view(torch.int32) & -65536).view(torch.float32)
    above = ((wide.view(torch.int32) & -65536) + 65536).view(torch.float32)
    assert drawn.item() in (below.item(), above.item())


@given(st.floats(width=16, allow_nan=False), st.integers(0, 2**31))
@settings(deadline=None)
def test_what_bfloat16_holds_stays(number: float, seed: int) -> None:
    held = torch.full((64,), number).bfloat16()
    assert torch.equal(round_stochastically(held.float(), generator(seed)), held)


def test_what_is_not_finite_stays() -> None:
    patterns = [0x7FFFFFFF, 0x7F800001, -1, 0x7F800000, -0x800000]  # nans of all kinds, inf, -inf
    wide = torch.tensor(patterns, dtype=torch.int32).view(torch.float32).repeat(100)
    drawn = round_stochastically(wide, generator()).float()
    assert torch.equal(drawn.isnan(), wide.isnan())
    assert torch.equal(drawn[~drawn.isnan()], wide[~wide.isnan()])


def test_draws_are_a_function_of_the_seed() -> None:
    wide = torch.randn(1000)
    first, again, other = (round_stochastically(wide, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len({derive_seed(5, number) for number in range(100)}) == 100


# Wide updates


def weights_and_targets(rows: int = 48) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Linear(32, rows, bias=False), torch.randn(rows, 32)


def stepped(
    layer: nn.Linear, target: torch.Tensor, optimizer: torch.optim.Optimizer, steps: int
) -> torch.Tensor:
    """The gradient pulls to the target; each step's is bfloat16, so that all have the same."""
    for step in range(steps):
        torch.manual_seed(step)
        pull = (torch.randn(target.shape) + target).bfloat16()
        layer.weight.grad = pull.to(layer.weight.dtype)
        optimizer.step()
    return layer.weight.detach().float()


CONFIGS = {
    "adamw, for-loop": replace(ADAMW, implementation="for-loop"),
    "adamw, fused": replace(ADAMW, implementation="fused"),
    "momentum": OptimizerConfig(name="momentum", lr=1e-2),
    "adagrad, foreach": OptimizerConfig(name="adagrad", lr=1e-2, implementation="foreach"),
    "adagrad, eps inside": OptimizerConfig(name="adagrad", lr=1e-2, eps_inside_root=True),
    "lion": OptimizerConfig(name="lion", lr=1e-3),
    "muon": OptimizerConfig(name="muon", lr=1e-2),
}


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_master_weights_are_float32_training(config: OptimizerConfig) -> None:
    """After 100 steps bit for bit, and the model's weights are theirs, rounded."""
    wide_layer, target = weights_and_targets()
    wide_layer.weight.data = wide_layer.weight.data.bfloat16().float()
    narrow = nn.Linear(32, 48, bias=False).bfloat16()
    narrow.load_state_dict({"weight": wide_layer.weight.bfloat16()})
    optimizer = precision("bf16-master").wrap(build(narrow, config))
    master_rounded = stepped(narrow, target, optimizer, 100)
    expected = stepped(wide_layer, target, build(wide_layer, config), 100)
    assert torch.equal(optimizer.state[narrow.weight]["master"], expected)
    assert torch.equal(master_rounded, expected.bfloat16().float())
    assert narrow.weight.dtype == torch.bfloat16


def test_small_updates_are_lost_in_bfloat16_and_not_by_chance() -> None:
    """100 steps of 1e-4 from 1, whose neighbours in bfloat16 are 2**-8 below and 2**-7 above."""
    config = OptimizerConfig(name="sgd", lr=1e-4)

    def trained(wraps: bool) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(4096, 4, dtype=torch.bfloat16))
        optimizer = build([("weight", weight)], config)
        if wraps:
            optimizer = precision("pure-bf16").wrap(optimizer, seed=1)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        return weight.detach().float()

    assert torch.equal(trained(wraps=False), torch.ones(4096, 4))
    assert trained(wraps=True).mean().item() == pytest.approx(0.99, abs=5e-4)


@pytest.mark.thorough
def test_state_of_stochastic_rounding_is_bfloat16_and_moves() -> None:
    """β₂ = 0.999 moves v by a thousandth of the way, which nearest rounding never does."""
    layer, _ = weights_and_targets()
    layer = layer.bfloat16()
    optimizer = precision("pure-bf16").wrap(build(layer, CONFIGS["adamw, for-loop"]))
    for _ in range(300):
        layer.weight.grad = torch.ones_like(layer.weight)
        optimizer.step()
    v = optimizer.state[layer.weight]["exp_avg_sq"]
    assert v.dtype == torch.bfloat16
    assert v.float().mean().item() == pytest.approx(1 - 0.999**300, rel=0.02)
    assert float(optimizer.state[layer.weight]["step"]) == 300


@pytest.mark.parametrize("name", ["bf16-master", "pure-bf16"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_chunks_change_nothing_and_resuming_is_going_on(name: str, config: OptimizerConfig) -> None:
    keeping = precision(name).keeping
    assert keeping is not None

    def start(chunk_bytes: int) -> tuple[Cruncher, WideUpdate]:
        torch.manual_seed(0)
        model = Cruncher(16, 3).bfloat16()
        inner = build(model, config)
        return model, WideUpdate(inner, keeping, seed=7, chunk_bytes=chunk_bytes)

    def train(model: Cruncher, optimizer: WideUpdate, steps: range) -> None:
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(8, 16, dtype=torch.bfloat16)).square().mean().backward()
            optimizer.step()

    model, optimizer = start(chunk_bytes=1 << 20)
    train(model, optimizer, range(6))
    other, by_tensors = start(chunk_bytes=1)
    train(other, by_tensors, range(3))
    resumed, going_on = start(chunk_bytes=1 << 20)
    resumed.load_state_dict(other.state_dict())
    going_on.load_state_dict(by_tensors.state_dict())
    train(resumed, going_on, range(3, 6))
    for expected, actual in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, actual)
        for key, value in optimizer.state[expected].items():
            again = going_on.state[actual][key]
            assert torch.equal(value, again), key
            assert value.dtype == again.dtype, key


def test_learning_rates_of_the_wrapper_count() -> None:
    layer, target = weights_and_targets()
    layer = layer.bfloat16()
    before = layer.weight.detach().clone()
    optimizer = precision("bf16-master").wrap(build(layer, CONFIGS["adamw, for-loop"]))
    optimizer.param_groups[0]["lr"] = 0.0
    stepped(layer, target, optimizer, 2)
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("name", ["bf16-master", "pure-bf16"])
@pytest.mark.parametrize("implementation", ["for-loop", "fused"])
def test_state_is_what_the_closed_form_says(name: str, implementation: str) -> None:
    how = precision(name)
    model = how.prepare(Cruncher(16, 3), "cpu")
    config = replace(ADAMW, implementation=implementation)
    optimizer = how.wrap(build(model, config))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    count = sum(parameter.numel() for parameter in model.parameters())
    plan = states_of_count(count, how.recipe, known_optimizer("adamw"))
    held_bytes = footprint(model, optimizer).optimizer_state_bytes
    assert held_bytes == plan.master.value + plan.optimizer.value


def test_weights_in_float32_are_refused_by_a_wide_update() -> None:
    with pytest.raises(UsageError, match="Prepare the model before"):
        precision("pure-bf16").wrap(build(Cruncher(4, 1), ADAMW))


def test_saved_state_without_masters_is_refused() -> None:
    model = Cruncher(4, 1).bfloat16()
    optimizer = precision("pure-bf16").wrap(build(model, ADAMW))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with pytest.raises(UsageError, match="no float32 master"):
        precision("bf16-master").wrap(build(model, ADAMW)).load_state_dict(optimizer.state_dict())
