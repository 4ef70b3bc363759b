"""Operators that CUDA runs as several kernels, or that read their operands again: a row each.

As counted in PyTorch's CUDA sources (aten/src/ATen/native/cuda, or as named); where a count depends
on shapes, the case is named. Copies to the host that an operator waits for are in it, fills by the
driver between the kernels of cub are not. cub takes two kernels to add up many elements, to scan or
to select (it sets up first), and to sort two and one for each 8 bits, but one alone where there are
few. Whatever is not here is one kernel, which reads its operands once.
"""

from enum import Enum, auto
from typing import NamedTuple


class Formula(Enum):
    """Operators whose seconds have a formula of their own."""

    SOFTMAX = auto()
    LAYER_NORM = auto()
    LAYER_NORM_BACKWARD = auto()
    BATCH_NORM = auto()
    """PyTorch's own kernels."""
    CUDNN_BATCH_NORM = auto()
    EMBEDDING_BACKWARD = auto()
    ACCUMULATION = auto()
    """Values put where indices say, added to what is there or in its place."""
    CONCATENATION = auto()
    PADDING = auto()


class Composed(NamedTuple):
    """What is known of an operator beside its bytes."""

    launches: int = 1
    """Kernels, where the formula does not count them by shape."""
    reads_again: tuple[str, ...] = ()
    """Arguments whose bytes are moved again, as often as they are named."""
    formula: Formula | None = None
    row_reads: int = 0
    """Reads beyond the first of a softmax's row that is not kept on chip: for its maximum, for the
    sum and for the result; backward the gradient for the sum and for the result
    (cunn_SoftMaxForward and cunn_SoftMaxBackward)."""


_ROWS = {
    "_softmax _log_softmax _safe_softmax": Composed(formula=Formula.SOFTMAX, row_reads=2),
    "_log_softmax_backward_data": Composed(formula=Formula.SOFTMAX, row_reads=1),
    # SoftMax.cu, softmax_backward_cuda_out: the gradient times the result first, which is written
    # and read by kernels of their own, and the result is read again.
    "_softmax_backward_data": Composed(
        2, ("grad_output", "grad_output", "output"), Formula.SOFTMAX, row_reads=1
    ),
    "native_layer_norm _fused_rms_norm": Composed(formula=Formula.LAYER_NORM),
    # The gradient of the input; those of weight and bias, where wanted: layer_norm_kernel.cu.
    "native_layer_norm_backward _fused_rms_norm_backward": Composed(
        formula=Formula.LAYER_NORM_BACKWARD
    ),
    # group_norm_kernel.cu: moments, their use per channel, the result; backward sums, the use of
    # each channel and of each group, the gradient of the input, those of weight and bias.
    "native_group_norm": Composed(3, ("input",)),
    "native_group_norm_backward": Composed(5, ("grad_out", "input")),
    # Normalization.cu: statistics, running statistics, the result. Backward is one kernel, but two
    # where channels are last.
    "native_batch_norm _native_batch_norm_legit _batch_norm_with_update": Composed(
        3, ("input",), Formula.BATCH_NORM
    ),
    "_native_batch_norm_legit_functional": Composed(1, ("input",), Formula.BATCH_NORM),
    "native_batch_norm_backward batch_norm_backward": Composed(
        1, ("grad_out", "input"), Formula.BATCH_NORM
    ),
    "cudnn_batch_norm": Composed(1, ("input",), Formula.CUDNN_BATCH_NORM),
    "cudnn_batch_norm_backward": Composed(1, ("grad_output", "input"), Formula.CUDNN_BATCH_NORM),
    "miopen_batch_norm_backward": Composed(1, ("grad_output", "input")),
    "embedding_dense_backward embedding_backward": Composed(formula=Formula.EMBEDDING_BACKWARD),
    "index_put _index_put_impl _unsafe_index_put": Composed(formula=Formula.ACCUMULATION),
    "cat concat stack _stack hstack vstack": Composed(formula=Formula.CONCATENATION),
    # PadNd.cpp: the padding first, everywhere.
    "constant_pad_nd": Composed(2, formula=Formula.PADDING),
    # LinearAlgebra.cpp: what the product is added to is copied into the result first.
    "baddbmm": Composed(2),
    # Loss.cpp: log_sigmoid, 1 - target, times the input, their difference, its mean. Results of
    # the first three are written, and four of them read again, as is the input; one is overwritten.
    "binary_cross_entropy_with_logits": Composed(5, ("self",) * 9),
    # Gradients start as zeros: Loss.cu, NLLLoss2d.cu, DilatedMaxPool2d.cu.
    "nll_loss_backward nll_loss2d_backward max_pool2d_with_indices_backward": Composed(2),
    "index_select_backward slice_backward select_backward": Composed(2),
    # SortStable.cu, one long row of 32 bits: places, a sort. Up to 2048 elements: 4 kernels.
    "sort argsort msort": Composed(7),
    # TensorTopK.cu: a block for each row, then they are sorted. Few long rows take about 20.
    "topk": Composed(2),
    # UniqueCub.cu, 64 bits without inverse: a sort, a selection, its length to the host.
    "_unique _unique2": Composed(13),
    "unique_consecutive": Composed(3),
    # An estimate: thrust's kernels are not counted.
    "unique_dim": Composed(14),
    # Randperm.cu, 32 random bits: places, bits, a sort, islands of equal ones.
    "randperm": Composed(9),
    # Distributions.cpp, one draw: 10 kernels of checks, random numbers, a quotient, its maximum.
    "multinomial": Composed(13),
    # Nonzero.cu: a count, which goes to the host, a selection, coordinates. Masks go by it.
    "nonzero": Composed(5),
    "masked_select": Composed(6),
    # IndexKernel.cu: a scan of the mask, a check, the result.
    "masked_scatter": Composed(4),
    # ScanUtils.cuh: of one row; of several one kernel.
    "cumsum cumprod": Composed(2),
    # LossCTC.cu: lengths and offsets to the device, alpha; backward also two fills, beta, the
    # gradient and zeros for the padding, of a small problem.
    "_ctc_loss": Composed(4),
    "_ctc_loss_backward": Composed(8),
}
COMPOSED = {name: row for names, row in _ROWS.items() for name in names.split()}
ONE_KERNEL = Composed()


def composed(name: str) -> Composed:
    """What is known of an operator by its plain name."""
    return COMPOSED.get(name, ONE_KERNEL)
