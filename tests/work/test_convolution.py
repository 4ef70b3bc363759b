"""Convolutions: plain, grouped, transposed, and their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.work.calls import Recording, call, cost, given, recorded
from torchtally.work import Cost, Kind, cost_of


def test_plain() -> None:
    # 2 images of 3 channels, 5 filters of 3x3: 10 * 64 results of 27 terms each
    inputs = [given("input", 2, 3, 10, 10), given("weight", 5, 3, 3, 3), given("bias", 5)]
    one = call("aten.convolution", inputs, (2, 5, 8, 8), transposed=False, groups=1)
    read = 4 * (600 + 135 + 5)
    assert cost_of(one) == (Kind.CONVOLUTION, Cost(2 * 640 * 27, read, 4 * 640))


def test_grouped_results_see_their_group_only() -> None:
    inputs = [given("input", 1, 4, 8), given("weight", 4, 1, 3)]
    one = call("aten.convolution", inputs, (1, 4, 6), transposed=False, groups=4)
    assert cost(one).flops == 2 * 24 * 3


def test_transposed_spreads_each_input_element() -> None:
    # 1 * 4 * 5 inputs, each into 3 channels of 2 positions
    inputs = [given("input", 1, 4, 5), given("weight", 4, 3, 2)]
    one = call("aten.convolution", inputs, (1, 3, 10), transposed=True, groups=1)
    assert cost(one).flops == 2 * 20 * 6


def test_backward_is_forward_for_each_gradient_wanted() -> None:
    inputs = [given("grad_output", 1, 5, 8), given("input", 1, 3, 10), given("weight", 5, 3, 3)]
    forward = 2 * 40 * 9
    for wanted, products in (((True, True, True), 2), ((False, True, False), 1)):
        one = call("aten.convolution_backward", inputs, (1, 3, 10), output_mask=wanted)
        assert cost(one).flops == products * forward


def test_time_first() -> None:
    inputs = [given("self", 10, 2, 3), given("weight", 3, 3, 5), given("bias", 5)]
    one = call("aten.conv_tbc", inputs, (8, 2, 5))
    assert cost(one).flops == 2 * 80 * 9


def test_convolution_of_an_unbatched_image_under_inference_mode() -> None:
    with torch.inference_mode():
        recording = recorded(
            torch.nn.functional.conv2d, torch.ones(3, 10, 10), torch.ones(5, 3, 3, 3)
        )
    assert [one.name for one in recording.calls] == ["aten.conv2d"]
    assert recording.total.flops == 2 * 5 * 64 * 27


def trained(layer: torch.nn.Module, x: torch.Tensor) -> tuple[int, int]:
    """FLOPs of matmul work by torch's counter and by ours, forward and backward."""
    with FlopCounterMode(display=False) as counter, Recording() as recording:
        layer(x.requires_grad_()).sum().backward()
    return counter.get_total_flops(), recording.flops(lambda kind: kind.is_matmul)


LAYERS: list[tuple[Callable[..., torch.nn.Module], tuple[Any, ...], tuple[int, ...]]] = [
    (torch.nn.Conv1d, (4, 6, 3), (2, 4, 16)),
    (torch.nn.Conv2d, (4, 6, 3, 2, 1), (2, 4, 9, 9)),
    (torch.nn.Conv3d, (4, 6, 3), (2, 4, 5, 5, 5)),
    (torch.nn.ConvTranspose1d, (4, 6, 3, 2), (2, 4, 8)),
    (torch.nn.ConvTranspose2d, (4, 6, 4, 2, 1), (2, 4, 8, 8)),
]


@pytest.mark.parametrize(("layer", "arguments", "shape"), LAYERS)
def test_training_equals_torchs_counter(
    layer: Callable[..., torch.nn.Module], arguments: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    theirs, ours = trained(layer(*arguments), torch.ones(shape))
    assert ours == theirs > 0


def test_grouped_backward_corrects_torchs_counter() -> None:
    """Torch counts a grouped weight gradient as if it had one group: g times too much."""
    groups = 4
    theirs, ours = trained(torch.nn.Conv1d(8, 8, 3, groups=groups), torch.ones(2, 8, 10))
    product = 2 * (2 * 8 * 8) * (2 * 3)
    assert ours == 3 * product
    assert theirs == (2 + groups) * product
