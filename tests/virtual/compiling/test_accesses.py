"""What a script's Triton kernel reads and writes: PyTorch's answer, soon."""

from typing import Any

import pytest
from torch._higher_order_ops import triton_kernel_wrap
from torch._higher_order_ops.triton_kernel_wrap import Intermediate, Op, Param

from torchtally.torch_private import accesses

X, Y, OUT, N = (Param(number) for number in range(4))


def doubled(times: int, kernel_writes_what_it_read: bool = False) -> dict[str, dict[Any, list[Op]]]:
    """`x` plus `n`, doubled so often, is the place of a load; what it gives is stored at `out`."""
    ops = {Intermediate(0): [op("tt.addptr", 0, X, N)]}
    for number in range(1, times):
        before = Intermediate(number - 1)
        ops[Intermediate(number)] = [op("arith.addi", number, before, before)]
    place = OUT if not kernel_writes_what_it_read else Intermediate(0)
    ops[Intermediate(times)] = [op("tt.load", times, Intermediate(times - 1), Y)]
    ops[Intermediate(times + 1)] = [op("tt.store", times + 1, place, Intermediate(times))]
    return {"kernel": ops}


def op(name: str, result: int, *arguments: Any) -> Op:
    return Op(name, None, list(arguments), Intermediate(result))


def answer(analysis: Any, functions: Any, tensors: frozenset[int] | None = None) -> Any:
    triton_kernel_wrap.analyze_kernel_access.reset()
    triton_kernel_wrap.get_tma_stores.reset()
    return analysis(functions, "kernel", 4, ("x", "y", "out", "n"), tensors)


@pytest.fixture
def linear() -> Any:
    analysis = accesses.analysis()
    if not analysis:
        pytest.skip("this release walks no value twice")
    ((_, function),) = analysis
    return function


@pytest.mark.parametrize("tensors", [None, frozenset((0, 1, 2))])
@pytest.mark.parametrize("in_place", [False, True])
def test_it_is_pytorchs_answer(linear: Any, in_place: bool, tensors: frozenset[int] | None) -> None:
    for times in (1, 2, 8):
        functions = doubled(times, in_place)
        assert answer(linear, functions, tensors) == answer(
            triton_kernel_wrap.analyze_kernel_access.fn, functions, tensors
        )


def test_a_value_that_is_used_twice_is_walked_once(linear: Any) -> None:
    """2^2000 ways lead from the load to `x`."""
    accesses_read = answer(linear, doubled(2000)).read_writes
    assert {each.name for each in accesses_read.reads} == {"x", "n"}
    assert {each.name for each in accesses_read.writes} == {"out"}
