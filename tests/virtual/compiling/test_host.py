"""What compiled code computes on the host has its values."""

import pytest
import torch
from torch import Tensor

from tests.traces import traced

pytestmark = pytest.mark.one_case_in(2)


@pytest.mark.thorough
def test_results_and_inputs_written_to() -> None:
    values: list[list[float]] = []

    def script() -> None:
        @torch.compile
        def advance(x: Tensor, rate: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            count += 1
            return x * rate, rate * 0.5 + count[0], count.max()

        x, rate, count = torch.ones(64, device="cuda"), torch.tensor(2.0), torch.zeros(3)
        for _ in range(3):
            _, rate, most = advance(x, rate, count)
            values.append([rate.item(), most.item(), *count.tolist()])

    trace = traced(script)
    assert values[0] == [2.0, 1.0, 1.0, 1.0, 1.0]
    assert values[1] == [3.0, 2.0, 2.0, 2.0, 2.0]
    assert values[2] == [4.5, 3.0, 3.0, 3.0, 3.0]
    assert not any("eagerly" in note.text for note in trace.notes)
    assert not trace.effects, "no C++ compiler is started"


@pytest.mark.parametrize(("elements", "expected"), [(64, 193.0), (1 << 20, 0.0)])
def test_what_comes_from_the_gpu_is_zero_unless_it_is_known(elements: int, expected: float) -> None:
    """Small tensors have values; of a large one nobody keeps them."""
    values: list[float] = []

    def script() -> None:
        @torch.compile
        def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return (x * 3).sum().cpu() + y, y + 1

        mixed, own = both(torch.ones(elements, device="cuda"), torch.ones(()))
        values.extend((mixed.item(), own.item()))

    traced(script)
    assert values == [expected, 2.0]


def test_functions_compiled_within_others_are_inlined() -> None:
    def script() -> None:
        @torch.compile
        def inner(x: Tensor) -> Tensor:
            return x.sin() + 1

        @torch.compile
        def outer(x: Tensor) -> Tensor:
            return inner(x * 2) * 3

        outer(torch.ones(64, device="cuda"))

    trace = traced(script)
    assert sum(op.parts != () for op in trace.ops) == 1
