"""`torch.cuda._compile_kernel`: nothing is compiled, and a launch is an operator."""

import pytest
import torch

import torchtally

MIB = 1024**2
SOURCE = """
extern "C" __global__ void __launch_bounds__(256) /* adds */ add_tensors(
    const float* a, const float* __restrict__ b, float* c, int n) { }
"""


def test_a_launch_reads_all_pointers_and_writes_those_to_no_constants():
    def run() -> None:
        a, b, c = (torch.randn(512, 512, device="cuda") for _ in range(3))
        kernel = torch.cuda._compile_kernel(SOURCE, "add_tensors")
        kernel(grid=(1, 1, 1), block=(256, 1, 1), args=[a, b, c, a.numel()])

    trace = torchtally.run(run, gpu="H100-SXM")
    ledger = torchtally.account(trace, step="all")
    (entry,) = (each for each in ledger.entries if each.call.name == "cuda.add_tensors")
    assert (entry.cost.bytes_read, entry.cost.bytes_written) == (3 * MIB, MIB)


def test_a_kernel_that_is_not_in_the_source_is_refused(gpu):
    with pytest.raises(RuntimeError, match="no __global__ function 'other'"):
        torch.cuda._compile_kernel(SOURCE, "other")
