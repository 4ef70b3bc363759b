"""Activations layer by layer, after one initialisation and another."""

import pytest
import torch
from torch import Tensor, nn

import torchtally


def deep(scale: float) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(6)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(256, 256) * scale)
    return model


def test_outputs_are_those_of_the_layers_in_order() -> None:
    model, rows = deep(1 / 16), torch.randn(32, 256)
    numbers = torchtally.numbers(model, ["fp16"], inputs=rows)
    outputs = [tensor for tensor in numbers.tensors if tensor.name.endswith(".output")]
    assert [tensor.name for tensor in outputs] == [f"{n}.output" for n in range(6)]
    with torch.no_grad():
        for tensor, layer in zip(outputs, model, strict=True):
            rows = layer(rows)
            assert tensor.largest == rows.abs().max().item()
            assert tensor.losses[0].overflows == int(rows.half().isinf().sum())


def test_weights_of_deviation_one_overflow_fp16_within_a_few_layers() -> None:
    """Each product of 256 terms multiplies the deviation by the root of 256, 16: after four layers
    it is 65536, over fp16's largest. Divided by 16 first it stays 1.
    """
    rows = torch.randn(32, 256)
    large, small = (
        torchtally.numbers(deep(scale), ["fp16"], inputs=rows) for scale in (1.0, 1 / 16)
    )
    assert large["0.output"].losses[0].overflows == 0
    assert large["5.output"].lost(large["5.output"].losses[0]) > 0.95
    assert large["1.output"].largest == pytest.approx(256 * 5, rel=0.3)
    assert small["5.output"].losses[0].overflows == 0
    assert large.worst()[0].name == "5.output"


def test_a_model_is_left_as_it_was() -> None:
    model = deep(1 / 16)
    model.eval()
    torchtally.numbers(model, ["bf16"], inputs=(torch.randn(2, 256),))
    assert not any(module._forward_hooks for module in model.modules())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), self.layer(self.layer(x))


def test_a_module_that_runs_three_times_has_three_outputs() -> None:
    numbers = torchtally.numbers(Shared(), ["bf16"], inputs=torch.randn(2, 4))
    assert [tensor.name for tensor in numbers.tensors].count("layer.output") == 3
