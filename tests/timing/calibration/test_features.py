"""Which calls are alike, and how large they are."""

import pytest
from msgspec.structs import replace

from tests.builders import GPU, mm_call, spec
from tests.timing.calibration.machines import add_call
from torchtally.timing.calibration import Features, features
from torchtally.trace import Call, TensorSpec
from torchtally.work import cost_of


def of(call: Call) -> Features:
    return features(call, *cost_of(call))


def test_a_product_by_its_three_sides():
    assert of(mm_call(2, 3, 5)) == Features("product", "float32 NN", (1, 2, 5, 3))


def test_a_product_of_transposed_weights():
    """(3, 5) with columns one after the other: strides 1 and 3."""
    call = mm_call(2, 3, 5)
    right = replace(call.inputs[1], stride=(1, 3))
    assert of(replace(call, inputs=(call.inputs[0], right))).variant == "float32 NT"


def test_a_bias_makes_no_other_product():
    call = mm_call(2, 3, 5)
    biased = replace(call, name="aten.addmm", inputs=(spec(5, argument="self"), *call.inputs))
    assert of(biased) == of(call)


def test_tf32_is_a_variant():
    assert of(mm_call(2, 3, 5, allow_tf32=True)).variant == "tf32 float32 NN"


def test_streaming_goes_by_bytes():
    assert of(add_call(10)) == Features("aten.add", "float32 of 2", (120,))


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("aten.add_", "float32 of 2"),
        ("aten._foreach_add_", "float32 of 2 in lists"),
        ("aten._foreach_add", "float32 of 2 in lists"),
    ],
)
def test_on_lists_it_is_the_same_operator_in_another_variant(name, variant):
    position = of(replace(add_call(10), name=name))
    assert position[:2] == ("aten.add", variant)


@pytest.mark.parametrize(
    ("shape", "stride", "variant"),
    [
        ((10, 10), (10, 1), "float32 of 2"),
        ((10, 1, 10), (10, 10, 1), "float32 of 2"),  # a dimension of one element has no step
        ((10, 10), (1, 10), "float32 of 2 transposed"),
        ((10, 10), (20, 1), "float32 of 2 apart"),
        ((10,), (1,), "float32 of 2 apart"),  # for each row
        ((10, 10), (20, 2), "float32 of 2 strided"),
    ],
)
def test_a_variant_says_how_tensors_lie(shape, stride, variant):
    """Beside rows of ten that lie one behind the other."""
    rows = TensorSpec("other", (10, 10), (10, 1), "float32", GPU, 1)
    result = TensorSpec("", (10, 10), (10, 1), "float32", GPU, 2)
    source = TensorSpec("self", shape, stride, "float32", GPU, 0)
    assert of(replace(add_call(10), inputs=(source, rows), outputs=(result,))).variant == variant


def test_a_convolution_is_the_product_it_amounts_to():
    """8 images of 4 x 4 results, 3 channels by 3 x 3 filters to 16: (128, 27) by (27, 16)."""
    image, weight = spec(8, 3, 4, 4, argument="input"), spec(16, 3, 3, 3, argument="weight")
    call = Call("aten.convolution", "default", (image, weight), (spec(8, 16, 4, 4, storage=2),),
                (("transposed", False), ("groups", 1)))  # fmt: skip
    assert of(call) == Features("aten.convolution", "float32 spatial", (1, 128, 16, 27))


def test_an_empty_tensor_has_a_size():
    assert of(add_call(0)).size == (1,)
