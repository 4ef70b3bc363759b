"""`torch.export` on the virtual GPU: a module is traced as torch traces it, and then runs."""

import sys
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

import torchtally
from torchtally.trace import Trace

GPU = "H100-SXM"


def eager() -> None:
    train(layers())


def exported() -> None:
    model = layers()
    example = torch.ones(8, 64, device="cuda")
    train(torch.export.export(model, (example,)).module())


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64)).cuda()


def train(model: nn.Module) -> None:
    out: Tensor = model(torch.ones(8, 64, device="cuda"))
    out.sum().backward()


def operators(trace: Trace) -> Counter[str]:
    return Counter(trace.calls[op.call].name for op in trace.ops)


def test_an_exported_module_does_what_it_does_eagerly() -> None:
    """Tracing itself runs nothing on the GPU."""
    traced, untraced = (operators(torchtally.run(each, gpu=GPU)) for each in (exported, eager))
    assert untraced["aten.addmm"] == untraced["aten.native_layer_norm_backward"] == 1
    assert traced - Counter(["aten.ones"]) == untraced  # without the example


def test_a_model_on_the_host_exports_too() -> None:
    def run() -> None:
        model = nn.Linear(4, 4)
        program = torch.export.export(model, (torch.ones(2, 4),))
        assert program.module()(torch.ones(2, 4)).shape == (2, 4)
        assert program.module().weight.device.type == "cpu"

    assert not torchtally.run(run, gpu=GPU).ops


def test_tracing_alone_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("triton.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    assert operators(torchtally.run(exported, gpu=GPU))["aten.addmm"] == 1
