"""Products of odd sizes: whether inductor pads them is decided by predicted times, and said."""

import pytest
import torch

import torchtally
from tests.traces import traced
from torchtally.errors import UsageError
from torchtally.trace import Call, Ending, Trace
from torchtally.tracer.session import recording
from torchtally.tracer.what_if import stand_ins
from torchtally.virtual.compiling.padding import MARGIN, is_faster
from torchtally.virtual.dispatch import KernelTime, no_time

pytestmark = pytest.mark.one_case_in(2)

M, K, N = 8192, 1024, 4097
"""(M, K) @ (K, N) in bfloat16: N is padded to 4104, the next multiple of 8."""


def multiply() -> None:
    left = torch.empty(M, K, dtype=torch.bfloat16, device="cuda")
    right = torch.empty(K, N, dtype=torch.bfloat16, device="cuda")
    torch.compile(lambda a, b: a @ b)(left, right)


def remarks(trace: Trace) -> list[str]:
    return [note.text for note in trace.notes if "assumed that the product" in note.text]


def widths(trace: Trace) -> set[int]:
    """Columns of what products give."""
    return {
        spec.shape[-1] for op in trace.ops for call in [trace.calls[op.call]]
        for spec in call.outputs if call.plain_name == "mm"
    }  # fmt: skip


def test_the_margin_is_inductors() -> None:
    assert MARGIN == 1.1
    assert is_faster(1.2, 1.0)
    assert not is_faster(1.05, 1.0)
    assert not is_faster(0.0, 0.0)


@pytest.mark.thorough
def test_a_product_whose_rows_begin_between_boundaries_is_padded_and_said() -> None:
    """It runs at half the rate of tensor cores; the copy is a tenth of the bytes it moves."""
    trace = traced(multiply)
    (remark,) = remarks(trace)
    assert f"of {M}x{K} by {K}x{N} is faster padded to {M}x4104" in remark
    assert f"copies of {K * 4104 * 2:,} bytes" in remark
    assert widths(trace) == {4104}


@pytest.mark.thorough
@pytest.mark.parametrize(("what_if", "width"), [("pad", 4104), ("pad=off", N)])
def test_either_can_be_tried(what_if: str, width: int) -> None:
    with recording("H100-SXM", script="", what_ifs=(what_if,)) as recorder:
        multiply()
        trace = recorder.trace(Ending("exit"))
    assert widths(trace) == {width}
    assert not any("changed nothing" in note.text for note in trace.notes)


def test_the_times_decide_and_without_any_nothing_is_padded() -> None:
    def slow_if_odd(call: Call) -> float:
        return 1.0 if call.outputs[0].shape[-1] == N else 0.0

    def peak_bytes(kernel_s: KernelTime) -> int:
        with torchtally.virtual_gpu("H100-SXM", kernel_s=kernel_s):
            multiply()
            return torch.cuda.max_memory_allocated()

    assert peak_bytes(slow_if_odd) > peak_bytes(no_time)


def test_another_value_is_refused() -> None:
    with pytest.raises(UsageError, match="expected pad or pad=off"):
        stand_ins(("pad=all",))


@pytest.mark.thorough
def test_inductor_asks_no_program_for_the_rates_of_the_chip() -> None:
    """It would start nvidia-smi, which was listed as the script's."""
    with torchtally.virtual_gpu("H100-SXM") as gpu:
        multiply()
        assert gpu.processes.programs == []
