"""cuDNN computes in the layout of input and weight; gradients come in it, whatever theirs was."""

import pytest
import torch

import torchtally

LAST = torch.channels_last
CONTIGUOUS = torch.contiguous_format


@pytest.mark.parametrize("of_gradient", [CONTIGUOUS, LAST])
@pytest.mark.parametrize("of_x", [CONTIGUOUS, LAST])
@pytest.mark.parametrize("of_weight", [CONTIGUOUS, LAST])
def test_gradients_lie_as_the_forward_pass_was_computed(
    of_gradient: torch.memory_format, of_x: torch.memory_format, of_weight: torch.memory_format
) -> None:
    with torchtally.virtual_gpu("H100-SXM"):
        gradient = torch.empty(4, 16, 8, 8, device="cuda").to(memory_format=of_gradient)
        x = torch.empty(4, 8, 16, 16, device="cuda").to(memory_format=of_x)
        weight = torch.empty(16, 8, 2, 2, device="cuda").to(memory_format=of_weight)
        gradients = torch.ops.aten.convolution_backward(
            gradient, x, weight, [16], [2, 2], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        expected = LAST if LAST in (of_x, of_weight) else CONTIGUOUS
        for result, operand in zip(gradients, (x, weight), strict=False):
            assert result.shape == operand.shape
            assert result.is_contiguous(memory_format=expected)
        assert gradients[2] is None
