"""Implementations against their equations, over a hundred steps; Muon against torch.optim.Muon."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.optimizers import equations
from tests.train.optimizers.equations import ByEquation
from tests.train.optimizers.pairs import (
    MATRICES,
    SHAPES,
    Make,
    assert_equal_to_rounding,
    numbered,
    parameters,
    train,
    trained_by,
)
from torchtally.errors import UsageError
from torchtally.train.optimizers.build import build, implementations
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.optimizers.lion import Lion
from torchtally.train.optimizers.muon import Muon, newton_schulz

pytestmark = pytest.mark.one_case_in(3)

CASES: dict[str, tuple[equations.Equation, dict[str, Any]]] = {
    "sgd": (equations.sgd, {"lr": 0.01, "weight_decay": 0.1}),
    "momentum": (equations.sgd, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
    "momentum nesterov": (equations.sgd, {"lr": 0.01, "momentum": 0.9, "nesterov": True}),
    "adagrad": (equations.adagrad, {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3}),
    "adagrad default": (equations.adagrad, {"lr": 0.1}),
    "adagrad inside": (
        equations.root_eps_adagrad, {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-3}),
    "adagrad inside default": (equations.root_eps_adagrad, {"lr": 0.1}),
    "rmsprop": (equations.rmsprop, {"lr": 0.01, "alpha": 0.9, "weight_decay": 0.1}),
    "adam": (equations.adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (equations.adamw, {"lr": 0.01, "weight_decay": 0.3, "betas": (0.8, 0.95)}),
    "lion": (equations.lion, {"lr": 0.01, "weight_decay": 0.3}),
}  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def built(case: str, kind: Any, **options: Any) -> Make:
    form = {"eps_inside_root": True} if "inside" in case else {}
    name = case.split()[0]
    config = OptimizerConfig(name=name, implementation=kind, decayed_on="all", **form, **options)
    return lambda them: build(numbered(them), config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (case, kind)
        for case in CASES
        for kind in implementations(OptimizerConfig(name=case.split()[0]), {"cpu"})
    ],
)
def test_equal_to_the_equation_over_100_steps(case: str, kind: str, dtype: torch.dtype) -> None:
    equation, options = CASES[case]
    expected = trained_by(lambda them: ByEquation(them, equation, **options), dtype=dtype)
    assert_equal_to_rounding(trained_by(built(case, kind, **options), dtype=dtype), expected)


@pytest.mark.parametrize("case", CASES)
def test_the_comparison_tells_another_learning_rate(case: str) -> None:
    equation, options = CASES[case]
    expected = trained_by(lambda them: ByEquation(them, equation, **options))
    other = {**options, "lr": options["lr"] * 1.001}
    with pytest.raises(AssertionError):
        assert_equal_to_rounding(trained_by(built(case, "auto", **other)), expected)


OURS: dict[str, tuple[Any, equations.Equation, dict[str, Any]]] = {
    "lion": (Lion, equations.lion, {"lr": 0.01, "weight_decay": 0.3}),
    "muon's adamw": (
        partial(Muon, orthogonalise=False), equations.adamw, {"lr": 0.01, "weight_decay": 0.3}),
}  # fmt: skip
"""Elementwise, and not torch's."""


@pytest.mark.parametrize("name", OURS)
def test_groups_with_learning_rates_of_their_own(name: str) -> None:
    kind, equation, options = OURS[name]

    def grouped(kind: Any) -> Make:
        return lambda them: kind(
            [{"params": them[:2], "lr": 0.003}, {"params": them[2:], "weight_decay": 0.2}],
            **options,
        )

    assert_equal_to_rounding(
        trained_by(grouped(kind), steps=30),
        trained_by(grouped(partial(ByEquation, equation=equation)), steps=30),
    )


@pytest.mark.parametrize("name", OURS)
def test_parameters_without_gradients_now_and_then(name: str) -> None:
    """Number 0 never has one, number 1 at every third step: its step counter runs slower."""
    kind, equation, options = OURS[name]

    def without(step: int) -> frozenset[int]:
        return frozenset({0} if step % 3 else {0, 1})

    ours = trained_by(lambda them: kind(them, **options), without=without, steps=30)
    expected = trained_by(
        lambda them: ByEquation(them, equation, **options), without=without, steps=30
    )
    assert_equal_to_rounding(ours, expected)
    assert torch.equal(ours[0], parameters()[0])
    assert not torch.equal(ours[1], parameters()[1])


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(OURS)),
    shapes=st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=4),
    lr=st.floats(1e-4, 0.05),
    weight_decay=st.sampled_from((0.0, 0.01, 0.5)),
)
def test_equal_to_the_equation_for_any_shapes(
    name: str, shapes: list[tuple[int, ...]], lr: float, weight_decay: float
) -> None:
    kind, equation, options = OURS[name]
    changed = {**options, "lr": lr, "weight_decay": weight_decay}
    assert_equal_to_rounding(
        trained_by(lambda them: kind(them, **changed), shapes, torch.float64, steps=5),
        trained_by(
            lambda them: ByEquation(them, equation, **changed), shapes, torch.float64, steps=5
        ),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lion_moves_by_the_learning_rate(dtype: torch.dtype) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    parameter.grad = torch.tensor([5.0, -0.001, 0.0], dtype=dtype)
    Lion([parameter], lr=0.5).step()
    assert parameter.tolist() == [-0.5, 0.5, 0.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"nesterov": False, "momentum": 0.8},
        {"adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.0},
        {"lr": 0.02, "ns_steps": 3},
    ],
    ids=str,
)
def test_muon_is_torchs(options: dict[str, Any], dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and not options.get("nesterov", True):
        pytest.skip("torch's divides the momentum itself: see the test below")
    ours = trained_by(lambda them: Muon(them, **options), MATRICES, dtype)
    theirs = trained_by(lambda them: torch.optim.Muon(them, **options), MATRICES, dtype)
    assert all(torch.equal(our, their) for our, their in zip(ours, theirs, strict=True))


def test_muon_keeps_its_momentum_in_bfloat16() -> None:
    """Without nesterov the momentum itself is made orthogonal, and must stay as it is.

    In torch.optim.Muon 2.13 `.bfloat16()` of a bfloat16 momentum is no copy, and the division by
    its norm is in place: the next step starts from a momentum of norm 1.
    """
    parameter = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.bfloat16))
    optimizer = Muon([parameter], momentum=0.5, nesterov=False)
    parameter.grad = torch.tensor([[4.0, 0.0], [0.0, 2.0]], dtype=torch.bfloat16)
    optimizer.step()
    momentum = optimizer.state[parameter]["momentum_buffer"]
    assert momentum.tolist() == [[2.0, 0.0], [0.0, 1.0]]


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(2, 12), columns=st.integers(2, 12), seed=st.integers(0, 1000))
def test_newton_schulz_brings_singular_values_near_one(rows: int, columns: int, seed: int) -> None:
    """Of a matrix with singular values from 0.2 to 1, known by its making; its vectors stay."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(rows, columns)
    left = torch.linalg.qr(torch.randn(rows, rank, generator=generator))[0]
    right = torch.linalg.qr(torch.randn(columns, rank, generator=generator))[0]
    values = torch.linspace(0.2, 1.0, rank)
    orthogonal = newton_schulz(left @ torch.diag(values) @ right.T).float()
    inner = left.T @ orthogonal @ right
    assert inner.diagonal().min() > 0.6
    assert inner.diagonal().max() < 1.3
    assert (inner - torch.diag(inner.diagonal())).abs().max() < 0.1
    assert torch.allclose(left @ inner @ right.T, orthogonal, atol=0.1)


def test_muon_beside_adamw() -> None:
    shapes = (*MATRICES, (4,), (9, 2))
    theirs = parameters(shapes)
    muon, adamw = torch.optim.Muon(theirs[:3], lr=0.02), torch.optim.AdamW(theirs[3:], lr=0.001)

    class Both(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            muon.step()
            adamw.step()

    train(theirs, Both(theirs))
    ours = trained_by(
        lambda them: Muon(
            [
                {"params": them[:3], "lr": 0.02},
                {"params": them[3:], "lr": 0.001, "orthogonalise": False, "weight_decay": 0.01},
            ]
        ),
        shapes,
    )
    assert_equal_to_rounding(ours, theirs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_muons_adamw_is_torchs_bit_for_bit(dtype: torch.dtype) -> None:
    """In bfloat16, too: it is torch's own kernel."""
    ours = trained_by(lambda them: Muon(them, lr=0.01, orthogonalise=False), dtype=dtype)
    theirs = trained_by(
        lambda them: torch.optim.AdamW(them, lr=0.01, weight_decay=0.1, fused=True), dtype=dtype
    )
    assert all(torch.equal(our, their) for our, their in zip(ours, theirs, strict=True))


def test_muon_of_no_matrix() -> None:
    with pytest.raises(UsageError, match=r"Muon.*1 of these.*shape \(5,\).*orthogonalise=False"):
        Muon(parameters([(3, 4), (5,)]))


KINDS = (partial(Muon, orthogonalise=False), Lion)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf")])
def test_learning_rates_that_are_none(kind: Any, lr: float) -> None:
    with pytest.raises(UsageError, match=r"lr: expected a finite number, 0 or more"):
        kind(parameters(), lr=lr)
    with pytest.raises(UsageError, match="lr: expected"):
        kind([{"params": parameters(), "lr": lr}])


@pytest.mark.parametrize("inside", [False, True])
def test_adagrads_two_forms_by_hand(inside: bool) -> None:
    """g = 3 twice: G = 9, then 18."""
    eps = 7.0
    roots = [(G + eps) ** 0.5 if inside else G**0.5 + eps for G in (9, 18)]
    parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    config = OptimizerConfig(
        name="adagrad", lr=2.0, weight_decay=0.0, eps=eps, eps_inside_root=inside
    )
    optimizer = build(numbered([parameter]), config)
    for _ in range(2):
        parameter.grad = torch.full((1,), 3.0, dtype=torch.float64)
        optimizer.step()
    assert parameter.item() == pytest.approx(-sum(2 * 3 / root for root in roots), rel=1e-15)


def test_all_shapes_are_meant() -> None:
    """Zero dimensions, zero elements and more than two dimensions are among those compared."""
    assert {len(shape) for shape in SHAPES} == {0, 1, 2, 3}
    assert any(0 in shape for shape in SHAPES)


def test_a_decay_near_one_is_not_rounded_to_bfloat16() -> None:
    """0.9979 is 0.9961 in bfloat16, to which torch's foreach rounds it on the CPU.

    Between 1 and 2 bfloat16 has steps of 1/128: 1.5 * 0.9979 = 1.4969 is nearest to 1.5, and
    1.5 * 0.9961 = 1.4941 to 1.5 - 1/128.
    """
    parameter = torch.nn.Parameter(torch.tensor([1.5], dtype=torch.bfloat16))
    parameter.grad = torch.zeros_like(parameter)
    Lion([parameter], lr=0.0021, weight_decay=1.0).step()
    assert parameter.item() == 1.5
    assert (parameter * torch.tensor(0.9979).bfloat16()).item() == 1.5 - 1 / 128
