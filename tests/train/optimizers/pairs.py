"""Two optimizers over alike parameters with the same gradients, and how far apart they end."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Make = Callable[[list[Any]], torch.optim.Optimizer]

SHAPES = ((3, 4), (5,), (2, 3, 2), (), (0, 3), (7, 1))
MATRICES = ((3, 4), (6, 2), (5, 5))

EPS = {torch.float64: 2**-52, torch.float32: 2**-23, torch.bfloat16: 2**-7}


def parameters(
    shapes: Sequence[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype))
        for shape in shapes
    ]


def numbered(parameters: Sequence[torch.nn.Parameter]) -> list[tuple[str, torch.nn.Parameter]]:
    """With names, as a model has them."""
    return [(str(at), parameter) for at, parameter in enumerate(parameters)]


def set_gradients(trained: Sequence[Tensor], seed: int, *, without: frozenset[int]) -> None:
    """The same for the same seed; those of `without` have none."""
    generator = torch.Generator().manual_seed(seed)
    for at, parameter in enumerate(trained):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = None if at in without else noise.to(parameter.dtype)


def train(
    trained: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int = 100,
    *,
    start: int = 0,
    without: Callable[[int], frozenset[int]] = lambda step: frozenset(),
) -> None:
    for step in range(start, start + steps):
        set_gradients(trained, seed=1000 + step, without=without(step))
        optimizer.step()


def trained_by(
    make: Make,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> list[torch.nn.Parameter]:
    counted_parameters = parameters(shapes, dtype)
    train(counted_parameters, make(list(counted_parameters)), **options)
    return counted_parameters


def assert_equal_to_rounding(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], roundings: float = 100
) -> None:
    """Within so many roundings of each tensor's largest element: one for each step."""
    for our, their in zip(ours, theirs, strict=True):
        if our.numel():
            scale = max(their.abs().max().item(), 1.0)
            apart = (our.double() - their.double()).abs().max().item()
            assert apart <= roundings * EPS[our.dtype] * scale, (tuple(our.shape), apart)
