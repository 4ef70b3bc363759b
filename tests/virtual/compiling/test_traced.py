"""What Dynamo and AOTAutograd trace is what they would trace on a GPU, though C++ is told meta."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.traces import names, traced
from torchtally.trace import Phase

SIZE = 8
MASK_VALUE = -1e9

DECOMPOSED: dict[str, Callable[[Tensor], Tensor]] = {
    "where": lambda x: torch.where(x > 0, x, MASK_VALUE),
    "std": lambda x: x.std(),
    "relu6": F.relu6,
    "interpolate": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(SIZE, dtype=torch.int64, device="cuda")),
}
"""Composite operators of which torch has shape functions in Python, too."""


@pytest.mark.thorough("test_compiled.py compares whole cases with the CUDA build")
@pytest.mark.usefixtures("gpu")
def test_composite_operators_keep_their_gradients() -> None:
    """They were taken for operators without one, silently."""
    for name, function in DECOMPOSED.items():
        x = torch.randn(SIZE, SIZE, device="cuda", requires_grad=True)
        torch.compile(function)(x).sum().backward()
        assert x.grad is not None, name


ON_DEVICE: dict[str, Callable[[Tensor], Tensor]] = {
    "tensor": lambda x: x + torch.tensor(1.5, device="cuda"),
    "as_tensor": lambda x: x + torch.as_tensor([1.5] * SIZE, device=torch.device("cuda")),
    "to": lambda x: x + torch.tensor(1.5).to("cuda"),
    "cuda": lambda x: x + torch.arange(SIZE).cuda(),
}


@pytest.mark.thorough
def test_a_device_without_a_number_is_the_current_gpu() -> None:
    """C++ asks a GPU for it."""

    def script() -> None:
        x = torch.ones(SIZE, device="cuda")
        for function in ON_DEVICE.values():
            assert torch.compile(function)(x).device == torch.device("cuda", 0)

    notes = [note.text for note in traced(script).notes]
    assert not any("graph break" in text or "eagerly" in text for text in notes), notes


@pytest.mark.thorough
def test_what_is_known_of_the_gpu_is_a_constant_of_the_graph() -> None:
    """It was a graph break: Dynamo did not know what stands in for these functions."""

    def scaled(x: Tensor) -> Tensor:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            x = x * torch.cuda.get_device_properties(0).multi_processor_count
        return x + torch.cuda.current_device()

    def script() -> None:
        torch.compile(scaled, fullgraph=True)(torch.ones(SIZE, device="cuda"))

    notes = [note.text for note in traced(script).notes]
    assert not any("graph break" in text or "eagerly" in text for text in notes), notes


def test_a_number_written_to_a_place_fills_it() -> None:
    """It was a tensor of the GPU first, which was copied."""

    def script(compiler: Callable[..., Callable[[Tensor], Tensor]]) -> list[str]:
        def shift(x: Tensor) -> Tensor:
            x = x.clone()
            x[..., 0] = 0
            return x

        return names(traced(lambda: compiler(shift)(torch.ones(SIZE, SIZE, device="cuda"))))

    eager = script(lambda function: function)
    assert eager == ["aten.ones", "aten.clone", "aten.select", "aten.fill_"]
    (kernel,) = (name for name in script(torch.compile) if "triton" in name)
    assert "fill" in kernel
    assert "scalar_tensor" not in kernel


class Loss(torch.autograd.Function):
    """A loss whose backward pass asks for no gradient: a rowwise product, and its factors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, weight)
        return (x @ weight).sum(1)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        x, weight = ctx.saved_tensors
        ones = torch.ones(SIZE, SIZE, device="cuda")
        return ones @ weight.T, x.T @ ones


@pytest.mark.thorough
def test_backward_work_that_is_compiled_with_the_forward_pass_is_backward() -> None:
    """What waits for no gradient from outside is done in the forward graph, as on a GPU."""

    def script() -> None:
        weights = [torch.ones(SIZE, SIZE, device="cuda", requires_grad=True) for _ in range(2)]
        x = torch.ones(SIZE, SIZE, device="cuda")
        compiled = torch.compile(lambda x, a, b: Loss.apply(x @ a, b), fullgraph=True)
        compiled(x, *weights).sum().backward()

    trace = traced(script)
    products = {
        phase: sum("mm" in name for name in names(trace, phase))
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)
    }
    assert products == {Phase.FORWARD: 2, Phase.BACKWARD: 3, Phase.RECOMPUTE: 0}
