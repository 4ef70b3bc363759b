"""Adapters, fine-tuning and the napkin by hand: every formula with its arithmetic written out."""

from dataclasses import replace

from tests.plan.test_by_hand import assert_same
from torchtally.plan.activations.kept import layer_activation_bytes, layers_activation_bytes
from torchtally.plan.activations.setting import setting_of
from torchtally.plan.adapters import FirstLayer, adapted_flops, adapter_of, adapter_weights
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.shapes import by_hand
from torchtally.plan.mixers.convolution import ShortConvolution
from torchtally.plan.questions import fine_tuning, napkin
from torchtally.plan.recipes import recipe


def small() -> Model:
    """d 4, two heads of 2, f 8 gated, two layers: 4 * 4 * 4 + 3 * 4 * 8 = 160 weights in a layer's
    matrices.
    """
    return by_hand(
        layers=2, width=4, heads=2, vocabulary=10, is_tied=False, feed_forward=8, is_gated=True
    )


def test_an_adapter_of_queries() -> None:
    """A (1, 4) and B (4, 1) in two layers: 16 weights. The scores: 2 * 2 layers * 2 heads * (2 + 2)
    * 3 tokens = 96. In the first layer q, k and v, 3 * 16, need no gradient of their input.
    """
    model = small()
    adapter = adapter_of(model, 1, ["q"])
    assert sum(weight.elements for weight in adapter_weights(model, adapter)) == 16
    token_flops = adapted_flops(model, adapter, 3)
    assert_same(token_flops.forward, 2 * 320 + 2 * 4 * 10 + 96 + 2 * 16)
    assert_same(token_flops.backward, 2 * (320 - 48) + 80 + 2 * 96 + 4 * 16 - 2 * 4)
    assert_same(token_flops.total, 848 + 872)
    assert_same(
        adapted_flops(model, adapter, 3, is_recomputed=True).backward,
        2 * 320 + 80 + 2 * 96 + 4 * 16,
    )


def test_dora_runs_its_targets_again() -> None:
    """By dropped inputs, 2 layers * 4 * 4 weights of q; and B A of each: 2 * 4 * (4 + 4)."""
    model = small()
    adapter = adapter_of(model, 1, ["q"], dropout=0.1, has_magnitude=True)
    token_flops = adapted_flops(model, adapter, 3)
    assert_same(token_flops.forward, 2 * 320 + 2 * 4 * 10 + 96 + 2 * 32 + 2 * 16)
    assert_same(token_flops.each_pass, 2 * 2 * 4 * (4 + 4))


def test_an_adapter_at_the_end_of_a_layer() -> None:
    """A (1, 8) and B (4, 1): 24 weights. Nothing in front of it in the first layer has a gradient,
    its scores, 48, neither.
    """
    model = small()
    token_flops = adapted_flops(model, adapter_of(model, 1, ["down"]), 3)
    assert_same(token_flops.backward, 2 * (320 - 160) + 80 + 2 * (96 - 48) + 4 * 24 - 2 * 8)


def test_adapters_beside_a_recurrence() -> None:
    """Two layers with convolutions of three tokens in attention's place: matrices of 12 * 4 and 4 *
    4, and a feed-forward's 3 * 4 * 8. Convolutions are 2 * 4 * 3 FLOPs each, and backward as many:
    their kernels are frozen. A (1, 4) and B (12, 1) beside the first matrix, whose input needs no
    gradient in the first layer, and A neither.
    """
    plain = small()
    kind = replace(plain.kinds[0], attention=None, recurrence=ShortConvolution(width=4, kernel=3))
    model = replace(plain, kinds=(kind,))
    adapter = adapter_of(model, 1, ["in_proj"])
    assert sum(weight.elements for weight in adapter_weights(model, adapter)) == 2 * 16
    flops, layer = adapted_flops(model, adapter, 3), 48 + 16 + 96
    assert_same(flops.forward, 2 * 2 * layer + 80 + 2 * 24 + 2 * 32)
    assert_same(flops.backward, 2 * (2 * layer - 48) + 80 + 2 * 24 + 4 * 32 - 2 * 4)


def test_the_first_layer_keeps_less() -> None:
    model = small()
    adapter = adapter_of(model, 1)
    at = setting_of(model, 1, 3, recipe("bf16"), adapter=adapter)
    (kind,) = model.kinds
    one = layer_activation_bytes(at, kind).value
    first = layer_activation_bytes(replace(at, first=FirstLayer(kind, adapter)), kind).value
    # The first norm keeps neither its input, 3 * 4 numbers in float32, nor their scales.
    norm = 3 * 4 * 4 + 3 * 4 if model.norm == "rms" else 3 * 4 * 2 + 2 * 3 * 4
    assert one - first == norm
    assert_same(layers_activation_bytes(at, kind), one + first)


def test_fine_tuning_by_hand() -> None:
    assert_same(fine_tuning.at_the_end(3, 4, 5), 7)
    assert_same(fine_tuning.at_the_end(3, 1, 5), 5)
    assert_same(fine_tuning.share_of_model(2, 8), 0.25)
    assert_same(fine_tuning._share(3, 4), 0.75)
    assert_same(fine_tuning.with_merging(10, 6, 3), 10 + 6 / 3)


def test_the_napkin_by_hand() -> None:
    assert_same(napkin.bytes_of_states(2, 3, 5, 2, 4), 2 + 3 + 5 + 2 * 4)
    assert_same(napkin.memory_of_chips(3, 5), 15)
    assert_same(napkin.share_of_chip(10, 3), 4)
