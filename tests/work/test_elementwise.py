"""Elementwise operators: so many FLOPs for each element of the result."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given as forall
from hypothesis import strategies as st

from tests.work.calls import call, cost, given, recorded
from torchtally.work import Cost, Kind, cost_of

aten = torch.ops.aten
x, y, z = (torch.ones(4, 8) for _ in range(3))
row, scalar = torch.ones(8), torch.ones(())
n = 32
complex_x = torch.ones(4, 8, dtype=torch.complex64)

SUMS: list[tuple[Callable[[], object], Cost]] = [
    # one input: n FLOPs, 4n bytes in, 4n out
    (lambda: aten.relu(x), Cost(n, 4 * n, 4 * n)),
    (lambda: aten.gelu(x), Cost(n, 4 * n, 4 * n)),
    (lambda: aten.exp(x.to(torch.bfloat16)), Cost(n, 2 * n, 2 * n)),
    (lambda: aten.exp_(x.clone()), Cost(n, 4 * n, 4 * n)),
    (lambda: aten.add(x, 1.0), Cost(n, 4 * n, 4 * n)),
    # two inputs
    (lambda: aten.add(x, y), Cost(n, 8 * n, 4 * n)),
    (lambda: aten.mul(x, row), Cost(n, 4 * n + 32, 4 * n)),
    (lambda: aten.mul(x, scalar), Cost(n, 4 * n + 4, 4 * n)),
    (lambda: aten.add_(x.clone(), y), Cost(n, 8 * n, 4 * n)),
    (lambda: aten.pow(x, 2), Cost(n, 4 * n, 4 * n)),
    # a compare writes one byte for each element
    (lambda: aten.gt(x, y), Cost(n, 8 * n, n)),
    (lambda: aten.logical_and(x > 0, y > 0), Cost(n, 2 * n, n)),
    (lambda: aten.where(x > 0, x, y), Cost(n, 9 * n, 4 * n)),
    (lambda: aten.masked_fill(x, x > 0, 0.0), Cost(n, 5 * n, 4 * n)),
    # formulas of several steps
    (lambda: aten.addcmul(x, y, z), Cost(2 * n, 12 * n, 4 * n)),
    (lambda: aten.addcdiv_(x.clone(), y, z), Cost(2 * n, 12 * n, 4 * n)),
    (lambda: aten.lerp(x, y, 0.5), Cost(3 * n, 8 * n, 4 * n)),
    (lambda: aten.glu(x), Cost(2 * n // 2, 4 * n, 2 * n)),
    (lambda: aten.glu_backward(x[:, :4], x, 1), Cost(3 * n, 6 * n, 4 * n)),
    (lambda: aten.threshold_backward(x, y, 0), Cost(n, 8 * n, 4 * n)),
    (lambda: aten.gelu_backward(x, y), Cost(2 * n, 8 * n, 4 * n)),
    (lambda: aten.silu_backward(x, y), Cost(2 * n, 8 * n, 4 * n)),
    (lambda: aten.sigmoid_backward(x, y), Cost(3 * n, 8 * n, 4 * n)),
    (lambda: aten.tanh_backward(x, y), Cost(3 * n, 8 * n, 4 * n)),
    (lambda: aten.native_dropout_backward(x, x > 0, 2.0), Cost(2 * n, 5 * n, 4 * n)),
    (lambda: aten._prelu_kernel_backward(x, y, z), Cost(3 * n, 12 * n, 8 * n)),
    (lambda: aten.isin(x, row), Cost(3 * n, 4 * n + 32, n)),
    # complex: 8 bytes an element, an addition 2 FLOPs, a multiplication 6, a division 11
    (lambda: aten.add(complex_x, complex_x), Cost(2 * n, 16 * n, 8 * n)),
    (lambda: aten.mul(complex_x, complex_x), Cost(6 * n, 16 * n, 8 * n)),
    (lambda: aten.div(complex_x, complex_x), Cost(11 * n, 16 * n, 8 * n)),
    (lambda: aten.abs(complex_x), Cost(4 * n, 8 * n, 4 * n)),
    (lambda: aten.polar(x, y), Cost(4 * n, 8 * n, 8 * n)),
    # lists: each tensor on its own
    (lambda: aten._foreach_add([x, row], [y, row]), Cost(40, 320, 160)),
    (lambda: aten._foreach_mul_([x.clone(), row.clone()], 2.0), Cost(40, 160, 160)),
    (lambda: aten._foreach_mul_([x.clone(), row.clone()], scalar), Cost(40, 164, 160)),
    (lambda: aten._foreach_addcdiv_([x.clone()], [y], [z]), Cost(2 * n, 12 * n, 4 * n)),
    (lambda: aten._foreach_lerp_([x.clone()], [y], 0.5), Cost(3 * n, 8 * n, 4 * n)),
    (lambda: aten._foreach_sqrt([x, row]), Cost(40, 160, 160)),
]


@pytest.mark.parametrize(("run", "expected"), SUMS)
def test_elementwise(run: Callable[[], object], expected: Cost) -> None:
    assert cost_of(recorded(run).calls[-1]) == (Kind.ELEMENTWISE, expected)


def test_a_byte_for_each_element_of_uint8() -> None:
    a = torch.ones(1024, 1024, dtype=torch.uint8)
    total = recorded(lambda: a + a).total
    assert total.flops == 1024 * 1024
    assert total.bytes == 3 * 1024 * 1024


@forall(st.lists(st.integers(0, 9), max_size=4), st.sampled_from(["add", "mul", "relu", "erf"]))
def test_as_many_flops_as_elements(shape: list[int], name: str) -> None:
    one = cost(call(f"aten.{name}", [given("self", *shape)], shape))
    assert one.flops == given("self", *shape).elements
    assert min(one.bytes_read, one.bytes_written) >= 0
