"""How many kernels an operator launches."""

import pytest

from tests.builders import unknown_call
from tests.timing.roofline.chips import add, mm
from tests.work.calls import call, given, spec
from torchtally.timing.constants import EMBEDDING_SORTED, FOREACH_CHUNK
from torchtally.timing.roofline.launches import launches
from torchtally.timing.roofline.lists import LIST_LIMITS, multi_tensor_launches
from torchtally.trace import Call


def test_most_operators_launch_one() -> None:
    assert launches(add(8)) == 1
    assert launches(mm(8, 8, 8)) == 1


def test_views_and_the_uncounted_launch_none() -> None:
    view = call("aten.view", [given("self", 8)], (8,))
    view = Call(view.name, "", view.inputs, (view.inputs[0],))
    assert launches(view) == 0
    assert launches(unknown_call()) == 0
    assert launches(add(0)) == 0


def test_a_softmaxs_backward_multiplies_first() -> None:
    inputs = [given("grad_output", 4, 8), given("output", 4, 8)]
    assert launches(call("aten._softmax_backward_data", inputs, (4, 8))) == 2
    assert launches(call("aten._log_softmax_backward_data", inputs, (4, 8))) == 1


def test_layer_norm_backward_launches_another_for_weight_and_bias() -> None:
    inputs = [given("grad_out", 4, 8), given("input", 4, 8)]
    name = "aten.native_layer_norm_backward"
    assert launches(call(name, inputs, (4, 8), (8,), (8,))) == 2
    assert launches(call(name, inputs, (4, 8))) == 1


@pytest.mark.parametrize(
    ("tensors", "depth", "expected"),
    [(1, 1, 1), (770, 1, 1), (771, 1, 2), (252, 4, 1), (253, 4, 2)],
)
def test_lists_go_in_as_few_kernels_as_their_addresses_fit(
    tensors: int, depth: int, expected: int
) -> None:
    assert multi_tensor_launches([1] * tensors, depth) == expected


def test_long_tensors_fill_a_launch_with_blocks() -> None:
    full = LIST_LIMITS.blocks * FOREACH_CHUNK
    assert multi_tensor_launches([full], 1) == 1
    assert multi_tensor_launches([full + 1], 1) == 2
    assert multi_tensor_launches([], 1) == 0
    assert multi_tensor_launches([0, 0], 1) == 0


def test_a_fused_optimizer_goes_over_four_lists() -> None:
    names = ("self", "grads", "exp_avgs", "exp_avg_sqs")
    few, many = (
        call("aten._fused_adamw_", [given(n, 8, written=True) for n in names for _ in range(count)])
        for count in (252, 253)
    )
    assert (launches(few), launches(many)) == (1, 2)


def test_a_foreach_norm_fills_a_buffer_and_adds_it_up_at_the_end() -> None:
    norms = call("aten._foreach_norm", [given("self", 8), given("self", 8)], (), ())
    assert launches(norms) == 3


@pytest.mark.parametrize(("mask", "expected"), [((1, 1, 1), 3), ((0, 1, 0), 1), ((1, 1, 0), 2)])
def test_convolution_backward_launches_one_for_each_gradient(
    mask: tuple[int, int, int], expected: int
) -> None:
    inputs = [
        given("grad_output", 1, 8, 4, 4),
        given("input", 1, 8, 4, 4),
        given("weight", 8, 8, 1, 1),
    ]
    flags = tuple(map(bool, mask))
    one = call("aten.convolution_backward", inputs, (1, 8, 4, 4), output_mask=flags)
    assert launches(one) == expected


@pytest.mark.parametrize(
    ("kernel", "dtype", "expected"),
    [
        ("flash", "bfloat16", 3),
        ("efficient", "bfloat16", 1),
        ("efficient", "float32", 4),
        ("cudnn", "bfloat16", 3),
    ],
)
def test_attention_backward(kernel: str, dtype: str, expected: int) -> None:
    names = ("grad_out", "query", "key", "value")
    inputs = [given(name, 1, 2, 8, 8, dtype=dtype) for name in names]
    name = f"aten._scaled_dot_product_{kernel}_attention"
    assert launches(call(f"{name}_backward", inputs, (1, 2, 8, 8))) == expected
    assert launches(call(name, inputs[1:], (1, 2, 8, 8))) == 1


def test_an_embeddings_backward_sorts_many_indices() -> None:
    few, many = (
        call(
            "aten.embedding_dense_backward",
            [given("grad_output", n, 4), given("indices", n, dtype="int64")],
            (100, 4),
        )
        for n in (100, 10_000)
    )
    # places, 2 + 8 to sort 64 bits, zeros; runs: 2 to select, 1 + 2 + 1 + 1 to divide, 2 to add
    assert EMBEDDING_SORTED == 1 + 10 + 1 + 2 + 5 + 2
    assert (launches(few), launches(many)) == (2, EMBEDDING_SORTED)


@pytest.mark.parametrize(("accumulate", "expected"), [(False, 1), (True, 3 + 1 + (2 + 3) + 1)])
def test_adding_at_indices_sorts_them(accumulate: bool, expected: int) -> None:
    inputs = [given("self", 100, 4), given("indices", 9, dtype="int64"), given("values", 9, 4)]
    one = call("aten._index_put_impl_", inputs, (100, 4), accumulate=accumulate)
    assert launches(one) == expected


def test_a_recurrent_network_launches_for_every_step() -> None:
    inputs = [given("input", 10, 2, 8), given("weight", 32, 8), given("weight", 32, 8)]
    assert launches(call("aten._cudnn_rnn", inputs, (10, 2, 8))) == 1 + 2 * 10


def test_many_tensors_are_joined_by_128() -> None:
    few, many = (
        call("aten.cat", [given("tensors", 4) for _ in range(n)], spec(4 * n)) for n in (128, 129)
    )
    assert (launches(few), launches(many)) == (1, 2)
