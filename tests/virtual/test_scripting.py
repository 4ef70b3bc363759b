"""TorchScript: what is compiled runs as Python, with devices as Python sees them."""

import importlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchtally
from tests.traces import accounted, traced
from torchtally.errors import UnsupportedError
from torchtally.virtual.scripting import NOTE


class Net(nn.Module):
    """A layer, and a branch on the device of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.to(torch.device("cuda:0")))
        return y @ torch.ones(2, 3, device=x.device) if x.is_cuda else y


def test_a_scripted_module_branches_and_moves_as_python_does():
    """8 by 4 by 2, and the product that a script on the GPU makes: 8 by 2 by 3."""

    def script() -> None:
        model = torch.jit.script(Net()).cuda()
        assert model(torch.randn(8, 4, device="cuda")).shape == (8, 3)
        assert model(torch.randn(8, 4)).shape == (8, 2)

    ledger = accounted(script)
    flops = [e.cost.flops for e in ledger.entries if e.call.name in ("aten.addmm", "aten.mm")]
    assert flops == [2 * 8 * 4 * 2, 2 * 8 * 2 * 3, 2 * 8 * 4 * 2]
    assert [note.text for note in ledger.trace.notes] == [NOTE]


def test_scripted_functions_and_traced_modules_count_at_their_own_lines():
    def script() -> None:
        @torch.jit.script
        def double(x: Tensor) -> Tensor:
            return x * 2  # here

        layer = torch.jit.trace(nn.Linear(4, 2).cuda(), torch.zeros(1, 4, device="cuda"))
        double(layer(torch.randn(8, 4, device="cuda"))).sum().backward()

    trace = traced(script)
    lines = {trace.sites[op.site].line.text for op in trace.ops}
    assert "return x * 2  # here" in lines


def test_a_scripted_model_is_saved_and_loaded_within_a_run(tmp_path: Path):
    path = tmp_path / "model.pt"
    with torchtally.virtual_gpu("H100-SXM"):
        model = torch.jit.freeze(torch.jit.script(Net().cuda().eval()))
        model.save(str(path))
        loaded = torch.jit.load(str(path), map_location="cuda")
        assert loaded(torch.zeros(8, 4, device="cuda")).shape == (8, 3)


def test_a_real_script_file_runs_on_the_host_and_is_refused_on_the_gpu(tmp_path: Path):
    path = str(tmp_path / "model.pt")
    torch.jit.save(torch.jit.script(nn.Linear(4, 2)), path)
    with torchtally.virtual_gpu("H100-SXM"):
        assert torch.jit.load(path)(torch.zeros(8, 4)).shape == (8, 2)
        with pytest.raises(UnsupportedError, match=r"torch\.jit\.load runs it in C\+\+"):
            torch.jit.load(path, map_location="cuda")


def test_a_class_of_torchs_own_is_compiled_in_its_own_module():
    """Functional optimizers, which a hook of DDP imports: their names are those of their module."""

    def script() -> None:
        from torch.distributed.optim import functional_sgd

        module = importlib.reload(functional_sgd)
        assert module._FunctionalSGD.__module__ == functional_sgd.__name__

    traced(script)
