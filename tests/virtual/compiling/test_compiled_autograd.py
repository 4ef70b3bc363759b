"""Compiled autograd: a backward pass that a compiled function calls is compiled as a whole."""

import torch
from torch import nn

from tests.traces import ops, traced
from torchtally.trace import Phase
from torchtally.virtual.compiling.events import COMPILED_BACKWARD

SIZE = 32


def test_its_kernels_are_of_the_backward_pass_and_at_the_line_that_calls_it() -> None:
    def script() -> None:
        model = nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, 1)).cuda()

        def step(x: torch.Tensor) -> None:
            loss = model(x).sum()
            loss.backward()  # compiled, too

        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(step)(torch.randn(SIZE, SIZE, device="cuda"))
        assert all(parameter.grad is not None for parameter in model.parameters())

    trace = traced(script)
    assert COMPILED_BACKWARD in [note.text for note in trace.notes]
    backward = ops(trace, phase=Phase.BACKWARD)
    assert any("triton" in op.call.name for op in backward)
    for op in backward:
        assert op.site.line is not None
        assert "backward()" in op.site.line.text
    products = [op for op in ops(trace) if op.call.name.endswith("mm")]
    assert [op.phase for op in products][:2] == [Phase.FORWARD] * 2
    assert {op.phase for op in products[2:]} == {Phase.BACKWARD}
