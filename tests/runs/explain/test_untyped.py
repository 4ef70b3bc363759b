"""Arguments recorded by their sizes alone: which are tensors, lists and indices, of which dtype."""

from pathlib import Path

import pytest

from tests.profiles.nsys_files import GEMM, ExportMaker, linear_step
from torchtally.errors import UsageError
from torchtally.ledger import Ledger, account
from torchtally.profiles import Arguments
from torchtally.profiles.profile import ANY_ARGUMENT, ANY_TENSOR
from torchtally.runs.explain.untyped import dtype_of, with_dtypes
from torchtally.runs.explaining import explain
from torchtally.timing.targets import known_roofline
from torchtally.trace import Phase

FLOPS = 2 * 4096**3
US = 1e-6
BF16 = "c10::BFloat16"


def ledger_of(tmp_path: Path, recorder: ExportMaker, gpu: str | None = None) -> Ledger:
    trace = explain(str(recorder.write(tmp_path / "report.sqlite")), gpu)
    ledger = account(trace, roofline=known_roofline(trace.chip))
    ledger.check()
    return ledger


def sizes_alone(*shapes: object) -> Arguments:
    types = tuple(ANY_TENSOR if shape else ANY_ARGUMENT for shape in shapes)
    return Arguments(shapes, None, types, None)


def test_a_step_seen_by_nsight_is_accounted(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, linear_step())
    assert ledger.trace.chip == "H100-SXM"
    assert ledger.total.kernel_s == pytest.approx(610 * US)
    assert ledger.total.flops_forward == FLOPS
    assert ledger.total.flops_backward == 2 * FLOPS
    assert ledger.by_phase()[Phase.OPTIMIZER].kernel_s == pytest.approx(10 * US)
    assert ledger.by_op()["aten.mul_"].bytes == 2 * 2 * 4096**2  # two bytes an element
    assert ledger.coverage.uncounted == ()
    notes = {note.text: note.count for note in ledger.trace.notes}
    assert notes == {"dtypes not recorded: read from the kernels' names": 5}


def test_another_processs_kernels_are_left_out_and_said(tmp_path: Path) -> None:
    maker = linear_step()
    maker.kernel("elsewhere", 20, 30, 100, pid=900)
    trace = ledger_of(tmp_path, maker).trace
    assert trace.measured is not None
    (lost,) = trace.measured.lost
    assert (lost.reason, lost.kernels) == ("in other processes of the report", 1)
    assert trace.measured.device_ns == 710_000


def test_without_ranges_kernels_keep_their_time_and_are_uncounted(tmp_path: Path) -> None:
    maker = ExportMaker()
    maker.kernel(GEMM, 20, 30, 200)
    ledger = ledger_of(tmp_path, maker)
    assert ledger.total.kernel_s == pytest.approx(200 * US)
    assert len(ledger.coverage.uncounted) == 1


def test_an_unknown_gpu_is_asked_for(tmp_path: Path) -> None:
    maker = linear_step(ExportMaker("NVIDIA Imaginary 9000"))
    with pytest.raises(UsageError, match=r"Imaginary 9000.*\n.*--gpu NAME"):
        ledger_of(tmp_path, maker)
    (tmp_path / "report.sqlite").unlink()
    assert ledger_of(tmp_path, maker, "A100-SXM").trace.chip.startswith("A100-SXM")


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        (GEMM, BF16),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_64x3_nt", "c10::Half"),
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NNT", BF16),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_nn", "float"),
        ("void splitKreduce_kernel<32, 16, int, __nv_bfloat16, float>", BF16),
        ("void pytorch_flash::flash_fwd_kernel<Traits<64, cutlass::half_t, float>>", "c10::Half"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<double, MeanOps>>", "double"),
        ("ncclDevKernel_Broadcast_RING_LL", None),
    ],
)
def test_kernels_name_their_dtype(kernel: str, dtype: str | None) -> None:
    assert dtype_of(kernel) == dtype


def test_a_list_takes_as_many_sizes_as_it_has_tensors() -> None:
    arguments = with_dtypes("aten::cat", sizes_alone((2, 3), (4, 3), (5, 3), ()), BF16)
    assert arguments.shapes == (((2, 3), (4, 3), (5, 3)), ())
    assert arguments.types == ("TensorList", "")


def test_lists_of_one_operator_are_equally_long() -> None:
    """_fused_adamw_ with two parameters, without maxima: (self, grads, exp_avgs, exp_avg_sqs,
    max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
    grad_scale, found_inf).
    """
    two = ((8, 8), (8,))
    arguments = with_dtypes(
        "aten::_fused_adamw_", sizes_alone(*two * 4, (), (), (), *((),) * 9), "float"
    )
    assert arguments.shapes is not None
    assert arguments.shapes[:6] == (two, two, two, two, (), ((), ()))
    assert arguments.types[:6] == ("TensorList",) * 6


def test_indices_masks_and_numbers_are_told_by_their_names() -> None:
    embedding = with_dtypes("aten::embedding", sizes_alone((100, 8), (4, 7), (), (), ()), BF16)
    assert embedding.types == (BF16, "long int", "", "", "")
    masked = with_dtypes("aten::masked_fill", sizes_alone((4, 4), (4, 4), ()), BF16)
    assert masked.types[:2] == (BF16, "bool")
    scaled = with_dtypes("aten::mul", sizes_alone((4, 4), ()), BF16)
    assert scaled.types == (BF16, "double")
    loss = with_dtypes("aten::mul", sizes_alone((), ()), BF16)
    assert loss.types == (BF16, BF16)


def test_numbers_that_shapes_tell() -> None:
    """(grad_out, query, key, value, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
    is_causal, philox_seed, philox_offset, scale).
    """
    query, key = (2, 8, 128, 64), (2, 8, 256, 64)
    sizes = (query, query, key, key, query, (2, 8, 128), *((),) * 9)
    name = "aten::_scaled_dot_product_flash_attention_backward"
    attention = with_dtypes(name, sizes_alone(*sizes), BF16)
    assert attention.values is not None
    assert attention.values[8:10] == ("128", "256")
    assert attention.types[5] == "float"
    norm = with_dtypes("aten::native_layer_norm", sizes_alone((4, 8), (), (8,), (8,), ()), BF16)
    assert norm.values == ("", "[8]", "", "", "")


def test_what_fits_no_overload_is_left_as_it_is() -> None:
    for name, arguments in (
        ("aten::mm", sizes_alone((2, 3))),
        ("aten::dropout", sizes_alone((2, 3), (4,), ())),
        ("aten::no_such_operator", sizes_alone((2, 3))),
    ):
        assert with_dtypes(name, arguments, BF16) == arguments
