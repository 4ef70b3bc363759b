"""What a convolution copies of operands in another layout than its own.

The figures were seen on PyTorch's CUDA build: 64 pictures of 7 x 7, 512 channels to 2048.
"""

import pytest
import torch

from tests.traces import traced
from torchtally.memory.workspace.kind import SCRATCH

LAST = torch.channels_last
CONTIGUOUS = torch.contiguous_format
INPUT_BYTES = 2 * 64 * 512 * 7 * 7
GRADIENT_BYTES = 2 * 64 * 2048 * 7 * 7


def scratch_bytes(
    of_x: torch.memory_format, of_weight: torch.memory_format, of_gradient: torch.memory_format
) -> tuple[list[int], list[int]]:
    """Of the convolution, and of its gradients."""

    def empty(*shape: int, layout: torch.memory_format) -> torch.Tensor:
        tensor = torch.empty(*shape, dtype=torch.bfloat16, device="cuda")
        return tensor.to(memory_format=layout)

    def script() -> None:
        x = empty(64, 512, 7, 7, layout=of_x)
        weight = empty(2048, 512, 1, 1, layout=of_weight)
        torch.ops.aten.convolution(x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        gradient = empty(64, 2048, 7, 7, layout=of_gradient)
        torch.ops.aten.convolution_backward(
            gradient, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        )

    trace = traced(script)
    ticks = [op.clock for op in trace.ops if "convolution" in trace.calls[op.call].name]
    forward, backward = (
        [each.bytes for each in trace.storages if each.name == SCRATCH.name and each.born == tick]
        for tick in ticks
    )
    return forward, backward


@pytest.mark.parametrize(
    ("layouts", "forward", "backward"),
    [
        ((CONTIGUOUS, CONTIGUOUS, CONTIGUOUS), [], []),
        ((LAST, LAST, LAST), [], []),
        ((CONTIGUOUS, LAST, LAST), [INPUT_BYTES], [INPUT_BYTES]),
        ((LAST, LAST, CONTIGUOUS), [], [GRADIENT_BYTES]),
        ((CONTIGUOUS, CONTIGUOUS, LAST), [], [GRADIENT_BYTES]),
    ],
)
def test_what_lies_otherwise_is_copied(
    layouts: tuple[torch.memory_format, torch.memory_format, torch.memory_format],
    forward: list[int],
    backward: list[int],
) -> None:
    assert (INPUT_BYTES, GRADIENT_BYTES) == (3_211_264, 12_845_056)
    assert scratch_bytes(*layouts) == (forward, backward)
