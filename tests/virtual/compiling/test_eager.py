"""Without triton torch.compile runs eagerly, and returns what has the shape it would have."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import torchtally
from tests.traces import names, ops, traced
from torchtally.virtual.compiling import request


@pytest.fixture(autouse=True)
def without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "find_spec", lambda name: None)


def test_a_compiled_module_keeps_its_prefix_and_its_parameters():
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).cuda()
        compiled = torch.compile(model)
        assert isinstance(compiled, nn.Module)
        assert list(compiled.state_dict()) == ["_orig_mod.0.weight", "_orig_mod.0.bias"]
        assert [name for name, _ in compiled.named_parameters()] == list(compiled.state_dict())
        assert compiled._orig_mod is model
        assert len(compiled) == 2
        assert next(compiled.parameters()) is model[0].weight
        x = torch.ones(1, 2, device="cuda")
        assert compiled(x).tolist() == model(x).tolist()
        compiled.load_state_dict(compiled.state_dict())


def test_modes_and_attributes_reach_the_module():
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Dropout(0.5)
        compiled = torch.compile(model, mode="max-autotune", fullgraph=True)
        compiled.eval()
        assert not model.training
        compiled.train()
        assert model.training
        compiled.p = 0.25
        assert model.p == 0.25
        model.eval()
        assert not compiled.training


def test_libraries_take_it_for_what_it_stands_for():
    """As accelerate asks before it unwraps a model."""
    with torchtally.virtual_gpu("H100-SXM"):
        compiled = torch.compile(nn.Linear(2, 2))
        assert isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule)
        assert isinstance(compiled, nn.Module)
        assert not isinstance(nn.Linear(2, 2), torch._dynamo.eval_frame.OptimizedModule)


def test_a_compiled_function_is_the_function():
    with torchtally.virtual_gpu("H100-SXM"):

        @torch.compile
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @torch.compile(fullgraph=True, dynamic=False)
        def triple(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        x = torch.ones(2, device="cuda")
        assert double(x).tolist() == [2, 2]
        assert triple(x).tolist() == [3, 3]


def test_module_compile_in_place():
    with torchtally.virtual_gpu("H100-SXM"):
        model = nn.Linear(2, 2, device="cuda")
        model.compile()
        assert model(torch.ones(1, 2, device="cuda")).shape == (1, 2)
        assert list(model.state_dict()) == ["weight", "bias"]


def test_the_report_says_that_it_ran_eagerly():
    def script() -> None:
        model = torch.compile(nn.Linear(2, 2).cuda())
        model(torch.ones(1, 2, device="cuda"))

    trace = traced(script)
    (note,) = trace.notes
    assert "torch.compile ran eagerly: inductor needs triton" in note.text
    assert "aten.addmm" in names(trace)
    assert traced(lambda: None).notes == ()


def test_modules_are_named_below_the_wrapper():
    def script() -> None:
        model = torch.compile(nn.Sequential(nn.Linear(2, 2)).cuda())
        model(torch.ones(1, 2, device="cuda"))

    (product,) = [op for op in ops(traced(script)) if op.call.name == "aten.addmm"]
    assert product.site.module == "0"
    assert product.site.module_class == "Linear"


def test_torch_compiler_helpers():
    with torchtally.virtual_gpu("H100-SXM"):
        assert not torch.compiler.is_compiling()

        @torch.compiler.disable
        def plain(x: torch.Tensor) -> torch.Tensor:
            return x + 1

        assert plain(torch.ones(1, device="cuda")).tolist() == [2]
        torch.compiler.cudagraph_mark_step_begin()


def test_scripted_functions_run():
    """torch.jit.script goes by the identity of torch's own functions."""
    with torchtally.virtual_gpu("H100-SXM"):
        scripted = torch.jit.script(halved)
        assert scripted(torch.ones(2, device="cuda")).tolist() == [0.5, 0.5]
    assert torch.jit.script(halved)(torch.ones(2)).tolist() == [0.5, 0.5]


def halved(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) + x * 0.5 + torch.zeros([2], device=x.device)


def test_no_compiler_is_imported_for_what_needs_none():
    """It takes longer to import than a small model takes to run; scripts that want it get it."""
    code = """
import sys, torch, torchtally
from torchtally.virtual.compiling import request
request.find_spec = lambda name: None
with torchtally.virtual_gpu("H100-SXM"):
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    print("torch._dynamo.eval_frame" in sys.modules)
    import torch._dynamo.config
    torch._dynamo.config.suppress_errors = True
    print("torch._dynamo.eval_frame" in sys.modules)
    optimizer.step()
print(torch._dynamo is sys.modules["torch._dynamo"], torch._dynamo.config.suppress_errors)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "True", "True"]


def test_a_build_with_kernels_for_cuda_does_not_warn_of_ours() -> None:
    """Of the first operator in a process whose kernel is registered again, C++ warns."""
    code = """
import torch
if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty_strided", "CUDA"):
    library = torch._C._dispatch_library("IMPL", "aten", "", "of_cuda.py", 1)
    library.impl("empty.memory_format", "CUDA", print, False)
    library.impl("empty_strided", "CUDA", print, False)
from torchtally.virtual.compiling import fakes
libraries = fakes.register()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
