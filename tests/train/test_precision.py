"""Precisions on the CPU: their dtypes, and what a device cannot do."""

import sys
from typing import get_args

import pytest
import torch
from torch import nn

import torchtally
from torchtally.chips import chip
from torchtally.errors import UsageError
from torchtally.train.config import PrecisionName
from torchtally.train.models.cruncher import Cruncher
from torchtally.train.models.linear import Linear
from torchtally.train.optimizers.build import build
from torchtally.train.optimizers.config import OptimizerConfig
from torchtally.train.precision import PRECISIONS, convert_to_fp8, precision

NAMES = ("fp32", "tf32", "bf16", "fp16", "bf16-master", "pure-bf16", "fp8")
ADAMW = OptimizerConfig(name="adamw", lr=1e-3)


def test_the_list() -> None:
    assert tuple(PRECISIONS) == NAMES
    for mode in PRECISIONS.values():
        assert mode.effect.endswith(".")
        assert mode.weight_dtype == getattr(torch, mode.recipe.weights)
        assert mode.recipe.is_autocast == (mode.autocast_dtype is not None)
    assert get_args(PrecisionName) == ("auto", *NAMES)
    with pytest.raises(UsageError, match="Choose one of fp32, tf32"):
        precision("fp64")


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "bf16-master", "pure-bf16"])
def test_products_and_weights_have_their_dtypes(name: str) -> None:
    how = precision(name)
    model = how.prepare(Cruncher(16, 2), "cpu")
    assert {parameter.dtype for parameter in model.parameters()} == {how.weight_dtype}
    with how.autocast("cpu"):
        result = model(torch.randn(4, 16, dtype=how.weight_dtype))
    assert result.dtype == getattr(torch, how.recipe.products)
    assert (how.scaler("cpu") is not None) == (name == "fp16")
    optimizer = build(model, ADAMW)
    assert (how.wrap(optimizer) is optimizer) == (how.keeping is None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("tf32", "an NVIDIA GPU of the Ampere generation or newer; cpu is not one. Use fp32"),
        ("fp8", "an NVIDIA GPU of the Ada generation or newer; cpu is not one. Use bf16"),
    ],
)
def test_what_a_cpu_cannot_do_is_refused(name: str, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        precision(name).prepare(Cruncher(16, 2), "cpu")


@pytest.mark.parametrize(
    ("gpu", "name", "advice"),
    [
        ("T4", "bf16", r"capability 8\.0 \(Ampere\) or newer; Tesla T4 has 7\.5\. Use fp16"),
        ("T4", "pure-bf16", r"has 7\.5\. Use fp16"),
        ("T4", "tf32", r"has 7\.5\. Use fp32"),
        ("A100-SXM-80GB", "fp8", r"capability 8\.9 \(Ada\) or newer; .* has 8\.0\. Use bf16"),
    ],
)
def test_what_a_chip_cannot_do_is_refused(gpu: str, name: str, advice: str) -> None:
    with torchtally.virtual_gpu(chip(gpu)), pytest.raises(UsageError, match=advice):
        precision(name).check("cuda")


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "bf16-master", "pure-bf16"])
def test_what_a_chip_can_do_is_done(name: str) -> None:
    with torchtally.virtual_gpu("H100-SXM"):
        assert precision(name).lack(torch.device("cuda")) == ""
        precision(name).check("cuda")


def test_fp8_without_torchao_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with (
        torchtally.virtual_gpu("H100-SXM"),
        pytest.raises(UsageError, match=r'pip install "torchtally\[fp8\]", or use bf16'),
    ):
        precision("fp8").prepare(Cruncher(16, 2), "cuda")


def test_fp8_rounds_products_and_keeps_parameters() -> None:
    pytest.importorskip("torchao.float8")
    torch.manual_seed(0)
    model = nn.Sequential(Linear(32, 48), Linear(48, 5))
    exact = model(x := torch.randn(64, 32))
    parameters = list(model.parameters())
    model = convert_to_fp8(model, is_emulated=True)
    assert [id(parameter) for parameter in model.parameters()] == [
        id(parameter) for parameter in parameters
    ]
    assert [type(with_fp8_product).__name__ for with_fp8_product in model] == [
        "Float8Linear",
        "Linear",
    ]
    error = (model(x) - exact).norm() / exact.norm()
    assert 0.001 < error.item() < 0.1
    with pytest.raises(UsageError, match="multiples of 16"):
        convert_to_fp8(nn.Sequential(Linear(5, 5)), is_emulated=True)


def test_tf32_is_set_and_taken_back() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        with torchtally.virtual_gpu("H100-SXM"):
            precision("tf32").prepare(Cruncher(4, 1), "cuda")
            assert torch.get_float32_matmul_precision() == "high"
            precision("fp32").prepare(Cruncher(4, 1), "cuda")
            assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision(before)
