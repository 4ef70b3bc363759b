"""The host as a chip: a session whose "cuda" runs what the CPU would run."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchtally
from tests.traces import names, ops, traced
from torchtally.chips import Chip
from torchtally.errors import UnsupportedError, UsageError

GIB = 1 << 30

HOST = Chip(
    name="cpu",
    vendor="CPU",
    architecture="x86_64",
    memory_bytes=8 * GIB,
    memory_bandwidth_bytes_per_s=50e9,
    peaks={},
    source="a test",
    driver_names=("A Processor of Eight Cores",),
)


def test_it_is_the_one_device_there_is():
    with torchtally.virtual_gpu(HOST):
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        assert torch.cuda.get_device_name() == "A Processor of Eight Cores"
        assert torch.cuda.get_device_name("cuda:0") == "A Processor of Eight Cores"
        assert torch.cuda.is_bf16_supported()
        assert torch.cuda.is_bf16_supported(including_emulation=False)
        assert not torch.cuda.is_tf32_supported()
        assert torch.cuda.get_arch_list() == []
        assert torch.zeros(2, device="cuda").device == torch.device("cuda", 0)


@pytest.mark.parametrize("ask", ["get_device_properties", "get_device_capability"])
def test_it_has_no_cuda_properties(ask: str):
    with (
        torchtally.virtual_gpu(HOST),
        pytest.raises(UnsupportedError, match="cpu is not a CUDA device"),
    ):
        getattr(torch.cuda, ask)()


def test_all_of_its_memory_is_the_scripts():
    """No CUDA context takes any of it, and no product a library's workspace."""
    with torchtally.virtual_gpu(HOST) as device:
        assert torch.cuda.mem_get_info() == (8 * GIB, 8 * GIB)
        x = torch.zeros(128, 128, device="cuda")
        product = x @ x
        assert device.allocated_bytes == 2 * 128 * 128 * 4
        del product
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")


def test_another_vendors_chip_stays_refused():
    with (
        pytest.raises(UsageError, match="not a CUDA device"),
        torchtally.virtual_gpu(replace(HOST, vendor="AMD")),
    ):
        pass


def attends() -> None:
    x = torch.zeros(1, 2, 8, 8, device="cuda")
    nn.functional.scaled_dot_product_attention(nn.functional.dropout(x), x, x)


def test_operators_fall_apart_as_on_the_cpu():
    on_host, on_gpu = names(traced(attends, HOST)), names(traced(attends))
    assert "aten.native_dropout" in on_gpu
    assert "aten.bernoulli_" in on_host
    assert "aten._scaled_dot_product_flash_attention_for_cpu" in on_host
    assert "aten._scaled_dot_product_flash_attention_for_cpu" not in on_gpu


def averages() -> None:
    """Two steps, clipped, and an average of the weights."""
    model = nn.Linear(8, 8).cuda()
    stepper = torch.optim.AdamW(model.parameters())
    average = torch.optim.swa_utils.AveragedModel(model)
    for _ in range(2):
        model(torch.zeros(1, 8, device="cuda")).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        average.update_parameters(model)


def test_optimizers_take_one_tensor_at_a_time_and_clipping_lists_as_on_the_cpu():
    """torch/optim/optimizer.py knows no lists on the CPU; torch/nn/utils/clip_grad.py does."""
    on_host, on_gpu = set(names(traced(averages, HOST))), set(names(traced(averages)))
    assert {name for name in on_host if "_foreach" in name} == {
        "aten._foreach_norm",
        "aten._foreach_mul_",
    }
    assert {"aten.lerp_", "aten.addcdiv_"} <= on_host
    assert {"aten._foreach_lerp_", "aten._foreach_addcdiv_"} <= on_gpu
    assert not {"aten.addcdiv_"} & on_gpu


ARITHMETIC = (
    "aten.mul_", "aten.lerp_", "aten.addcmul_", "aten.sqrt", "aten.div", "aten.addcdiv_",
    "aten.add", "aten._fused_adamw_", "aten._fused_sgd_",
)  # fmt: skip
"""What optimizers compute with; `add_` counts steps, too, on the host."""


class Counting(TorchDispatchMode):
    """How often each operator of arithmetic really runs."""

    def __init__(self) -> None:
        super().__init__()
        self.times: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.times[func.name().split(".")[0].replace("::", ".")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizer_runs_what_it_runs_on_the_real_cpu(optimizer: type[torch.optim.Optimizer]):
    def steps(device: str) -> None:
        parameters = [torch.zeros(8, device=device, requires_grad=True) for _ in range(3)]
        for parameter in parameters:
            parameter.grad = torch.ones(8, device=device)
        stepper = optimizer(parameters, lr=0.1, weight_decay=0.1)
        for _ in range(2):
            stepper.step()

    with Counting() as real:
        steps("cpu")
    trace = traced(lambda: steps("cuda"), HOST)
    simulated = Counter(names(trace))
    for name in ARITHMETIC:
        assert simulated[name] == real.times[name], name
    assert sum(simulated[name] for name in ARITHMETIC) >= 2 * 3
    assert not any("_foreach" in name for name in simulated)


def test_the_trace_names_it():
    trace = traced(attends, HOST)
    assert trace.chip == "cpu"
    assert all(not op.call.literal("allow_tf32", False) for op in ops(trace))
