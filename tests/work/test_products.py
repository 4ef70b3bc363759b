"""Matrix products: 2 * M * K * N, and nothing else."""

import pytest
import torch
from hypothesis import given as forall
from hypothesis import strategies as st

from tests.work.calls import call, cost, given, recorded
from torchtally.trace import Call
from torchtally.work import Cost, Kind, cost_of

SUMS = [
    # (2, 3) @ (3, 4): 2*2*3*4 FLOPs; 4 * (6 + 12) bytes read, 4 * 8 written
    (call("aten.mm", [given("self", 2, 3), given("mat2", 3, 4)], (2, 4)), Cost(48, 72, 32)),
    (
        call("aten.bmm", [given("self", 5, 2, 3), given("mat2", 5, 3, 4)], (5, 2, 4)),
        Cost(5 * 48, 5 * 72, 5 * 32),
    ),
    # the bias is read, its addition not counted
    (
        call("aten.addmm", [given("self", 4), given("mat1", 2, 3), given("mat2", 3, 4)], (2, 4)),
        Cost(48, 72 + 16, 32),
    ),
    (
        call(
            "aten.baddbmm",
            [given("self", 5, 2, 4), given("batch1", 5, 2, 3), given("batch2", 5, 3, 4)],
            (5, 2, 4),
        ),
        Cost(240, 5 * (72 + 32), 160),
    ),
    (
        call(
            "aten.addbmm",
            [given("self", 2, 4), given("batch1", 5, 2, 3), given("batch2", 5, 3, 4)],
            (2, 4),
        ),
        Cost(240, 5 * 72 + 32, 32),
    ),
    # in place: self is read and written
    (
        call(
            "aten.addmm_",
            [given("self", 2, 4, written=True), given("mat1", 2, 3), given("mat2", 3, 4)],
        ),
        Cost(48, 72 + 32, 32),
    ),
    (call("aten.mv", [given("self", 2, 3), given("vec", 3)], (2,)), Cost(12, 36, 8)),
    (
        call("aten.addmv", [given("self", 2), given("mat", 2, 3), given("vec", 3)], (2,)),
        Cost(12, 44, 8),
    ),
    (call("aten.dot", [given("self", 3), given("tensor", 3)], ()), Cost(6, 24, 4)),
    (call("aten.vdot", [given("self", 3), given("other", 3)], ()), Cost(6, 24, 4)),
    (
        call("aten.addr", [given("self", 2, 3), given("vec1", 2), given("vec2", 3)], (2, 3)),
        Cost(12, 44, 24),
    ),
    (
        call("aten.linear", [given("input", 5, 2, 3), given("weight", 4, 3)], (5, 2, 4)),
        Cost(240, 4 * (30 + 12), 160),
    ),
    (
        call("aten.matmul", [given("self", 5, 2, 3), given("other", 3)], (5, 2)),
        Cost(60, 4 * (30 + 3), 40),
    ),
    (call("aten.dot", [given("self", 3)] * 2, ()), Cost(6, 24, 4)),
    # int8: a byte each, 4 bytes out
    (
        call(
            "aten._int_mm",
            [given("self", 2, 3, dtype="int8"), given("mat2", 3, 4, dtype="int8")],
            given("", 2, 4, dtype="int32"),
        ),
        Cost(48, 18, 32),
    ),
    # fp8 with two scales
    (
        call(
            "aten._scaled_mm",
            [
                given("self", 2, 3, dtype="float8_e4m3fn"),
                given("mat2", 3, 4, dtype="float8_e4m3fn"),
                given("scale_a"),
                given("scale_b"),
            ],
            given("", 2, 4, dtype="bfloat16"),
            out_dtype="bfloat16",
        ),
        Cost(48, 6 + 12 + 8, 16),
    ),
    # fp4: each of the 3 packed elements is two numbers, K = 6
    (
        call(
            "aten._scaled_mm_v2",
            [
                given("self", 2, 3, dtype="float4_e2m1fn_x2"),
                given("mat2", 3, 4, dtype="float4_e2m1fn_x2"),
            ],
            given("", 2, 4, dtype="bfloat16"),
        ),
        Cost(96, 18, 16),
    ),
    # 4-bit weights, packed: only the input says K, only the output N
    (
        call(
            "aten._weight_int4pack_mm",
            [
                given("self", 2, 32, dtype="bfloat16"),
                given("mat2", 1, 2, 32, 2, dtype="int32"),
                given("qScaleAndZeros", 1, 8, 2, dtype="bfloat16"),
            ],
            given("", 2, 8, dtype="bfloat16"),
            qGroupSize=32,
        ),
        Cost(2 * 2 * 32 * 8, 2 * 64 + 4 * 128 + 2 * 16, 32),
    ),
    # two groups share 6 rows
    (
        call(
            "aten._grouped_mm",
            [given("self", 6, 3), given("mat2", 2, 3, 4), given("offs", 2, dtype="int32")],
            (6, 4),
        ),
        Cost(2 * 6 * 3 * 4, 4 * (18 + 24 + 2), 4 * 24),
    ),
    # two groups share 6 columns
    (
        call("aten._grouped_mm", [given("self", 2, 4, 3), given("mat2", 3, 6)], (4, 6)),
        Cost(2 * 4 * 3 * 6, 4 * (24 + 18), 4 * 24),
    ),
    # two groups share K = 6
    (
        call("aten._grouped_mm", [given("self", 4, 6), given("mat2", 6, 5)], (2, 4, 5)),
        Cost(2 * 4 * 6 * 5, 4 * (24 + 30), 4 * 40),
    ),
    # two whole groups
    (
        call("aten._grouped_mm", [given("self", 2, 4, 3), given("mat2", 2, 3, 5)], (2, 4, 5)),
        Cost(2 * 2 * 4 * 3 * 5, 4 * (24 + 30), 4 * 40),
    ),
    # complex: 8 real FLOPs for each multiply-add
    (
        call(
            "aten.mm",
            [given("self", 2, 3, dtype="complex64"), given("mat2", 3, 4, dtype="complex64")],
            given("", 2, 4, dtype="complex64"),
        ),
        Cost(8 * 24, 2 * 72, 2 * 32),
    ),
    (
        call(
            "aten.tensordot",
            [given("self", 2, 3, 5), given("other", 5, 3, 4)],
            (2, 4),
            dims_self=(1, 2),
            dims_other=(1, 0),
        ),
        Cost(2 * 2 * 15 * 4, 4 * (30 + 60), 32),
    ),
    (
        call(
            "aten._foreach_mm",
            [given("self", 2, 3), given("self", 4, 5), given("mat2", 3, 4), given("mat2", 5, 6)],
            (2, 4),
            (4, 6),
        ),
        Cost(48 + 240, 4 * (6 + 20 + 12 + 30), 4 * (8 + 24)),
    ),
    (
        call(
            "aten.linear_backward",
            [given("self", 2, 3), given("grad_output", 2, 4), given("weight", 4, 3)],
            (2, 3),
            (4, 3),
            output_mask=(True, True, False),
        ),
        Cost(2 * 48, 4 * (6 + 8 + 12), 4 * (6 + 12)),
    ),
    (
        call(
            "aten.bilinear", [given("i", 2, 3), given("j", 2, 5), given("weight", 4, 3, 5)], (2, 4)
        ),
        Cost(2 * 2 * 4 * 5 * (3 + 1), 4 * (6 + 10 + 60), 32),
    ),
]


@pytest.mark.parametrize(("one", "expected"), SUMS, ids=lambda value: getattr(value, "name", ""))
def test_product(one: Call, expected: Cost) -> None:
    assert cost_of(one) == (Kind.PRODUCT, expected)


@pytest.mark.parametrize(
    ("equation", "shapes", "multiply_adds"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)], 24),
        ("bhsd,bhtd->bhst", [(2, 3, 4, 5), (2, 3, 6, 5)], 2 * 3 * 4 * 6 * 5),
        ("...ij,jk->...ik", [(7, 2, 3), (3, 4)], 7 * 24),
        ("i,j", [(2,), (3,)], 6),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)], 24 + 2 * 4 * 5),
    ],
)
def test_einsum_under_inference_mode(
    equation: str, shapes: list[tuple[int, ...]], multiply_adds: int
) -> None:
    with torch.inference_mode():
        recording = recorded(torch.einsum, equation, *(torch.ones(shape) for shape in shapes))
    assert [one.name for one in recording.calls] == ["aten.einsum"]
    assert recording.total.flops == 2 * multiply_adds


def test_trilinear_is_two_multiplies_and_an_add_for_each_point() -> None:
    layer = torch.nn.Bilinear(3, 5, 4)
    recording = recorded(layer, torch.ones(2, 3), torch.ones(2, 5))
    (one,) = recording.named("aten._trilinear")
    assert cost(one).flops == 3 * 2 * 4 * 3 * 5


@pytest.mark.parametrize(("gradients", "products"), [(False, 1), (True, 3)])
def test_linear_cross_entropy_may_prepare_its_gradients(gradients: bool, products: int) -> None:
    one = call(
        "torch_nn._linear_cross_entropy_batch_chunked",
        [given("input", 6, 4), given("linear_weight", 10, 4), given("target", 6, dtype="int64")],
        (),
        compute_input_grad=gradients,
        compute_linear_weight_grad=gradients,
    )
    assert cost(one).flops == products * 2 * 6 * 4 * 10


sizes = st.integers(0, 64)


@forall(st.tuples(sizes, sizes, sizes, sizes))
def test_a_batch_costs_the_sum_of_its_products(lengths: tuple[int, int, int, int]) -> None:
    B, M, K, N = lengths
    batch = cost(call("aten.bmm", [given("self", B, M, K), given("mat2", B, K, N)], (B, M, N)))
    single = cost(call("aten.mm", [given("self", M, K), given("mat2", K, N)], (M, N)))
    assert batch == single * B


@forall(st.tuples(sizes, sizes), sizes, sizes)
def test_rows_add(lengths: tuple[int, int], rows: int, more: int) -> None:
    K, N = lengths

    def flops(M: int) -> int:
        one = call("aten.mm", [given("self", M, K), given("mat2", K, N)], (M, N))
        return cost(one).flops

    assert flops(rows + more) == flops(rows) + flops(more)
