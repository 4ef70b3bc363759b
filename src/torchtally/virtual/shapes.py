"""Shape functions of device operators for which torch has none, by their documentation."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.memory.workspace import convolutions
from torchtally.torch_private import OpOverload

aten = torch.ops.aten

SHAPES: dict[OpOverload, Callable[..., Any]] = {}
"""Operator to a function from its meta arguments to its meta results."""


def shape_of(overload: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        SHAPES[overload] = function
        return function

    return register


@shape_of(aten.is_set_to.default)
def is_set_to(x: Tensor, other: Tensor) -> bool:
    same_place = x.storage_offset() == other.storage_offset() and x.stride() == other.stride()
    return private.storage_identity(x) == private.storage_identity(other) and (
        same_place and x.shape == other.shape
    )


@shape_of(aten._fused_rms_norm.default)
def fused_rms_norm(x: Tensor, normalized_shape: list[int], weight: Any, eps: Any) -> Any:
    """Result like x; one reciprocal root mean square a row, in the type CUDA accumulates in."""
    rows = list(x.shape[: x.dim() - len(normalized_shape)])
    accumulates = torch.float64 if x.dtype is torch.float64 else torch.float32
    rstd = x.new_empty(rows + [1] * len(normalized_shape), dtype=accumulates)
    return torch.empty_like(x), rstd


@shape_of(aten._weight_int4pack_mm.default)
def weight_int4pack_mm(x: Tensor, weight: Tensor, group_size: int, scales: Tensor) -> Tensor:
    """CUDA packs eight rows of the weight in one of the result's first dimension
    (_convert_weight_to_int4pack, aten/src/ATen/native/cuda/int4mm.cu). Torch's own shape function
    asks for the device of a fake tensor (torch/_meta_registrations.py).
    """
    return x.new_empty(x.size(0), 8 * weight.size(0))


GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Gate products a step, by cuDNN's mode: ReLU, tanh, LSTM, GRU."""


@shape_of(aten._cudnn_rnn.default)
def cudnn_rnn(
    x: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Any, hx: Tensor, cx: Any,
    mode: int, hidden: int, projected: int, layers: int, batch_first: bool, dropout: float,
    train: bool, bidirectional: bool, batch_sizes: list[int], dropout_state: Any,
) -> Any:  # fmt: skip
    """T: steps. B: batch. H: hidden. D: directions. Packed input has T*B rows in one dimension.

    cuDNN does not publish the size of its reserve space. Taken here: what its backward cannot do
    without, the activated gates and the cell state of every step of every layer.
    """
    directions = 2 if bidirectional else 1
    out_size = (projected or hidden) * directions
    output = x.new_empty((*x.shape[:-1], out_size))
    if batch_first and not batch_sizes:
        # cuDNN works step first; the result is a transposed view of that.
        output = x.new_empty((x.shape[1], x.shape[0], out_size)).transpose(0, 1)
    steps_by_batch = x.shape[:-1].numel()
    saved = steps_by_batch * hidden * directions * layers * (GATES[mode] + 1) if train else 0
    reserve = x.new_empty(saved * x.element_size(), dtype=torch.uint8)
    cy = torch.empty_like(cx) if cx is not None else x.new_empty(0)
    return output, torch.empty_like(hx), cy, reserve, x.new_empty(0)


@shape_of(aten._cudnn_rnn_backward.default)
def cudnn_rnn_backward(
    x: Tensor, weight: list[Tensor], weight_stride0: int, weight_buf: Tensor, hx: Tensor, cx: Any,
    *rest: Any,
) -> Any:  # fmt: skip
    mask = rest[-1]
    dcx = torch.empty_like(cx) if cx is not None else x.new_empty(0)
    dweight = [torch.empty_like(w) for w in weight] if mask[3] else []
    return torch.empty_like(x), torch.empty_like(hx), dcx, dweight


class OfThisMoment(tuple[Any, ...]):
    """Results that depend on a setting besides the call's signature.

    They are not reused: `template_of` makes templates of plain tuples only.
    """


PAGE_BYTES = 4096


def leading_size(elements: int, element_bytes: int) -> int:
    """Size of a row in oneDNN's workspace: whole cache lines, and one more than a multiple of
    256.
    """
    line = 64 // element_bytes
    size = -(-elements // line) * line
    return size + line if size % 256 == 0 else size


def rnn_workspace_bytes(T: int, B: int, I: int, H: int, dtype: torch.dtype) -> int:  # noqa: E741
    """What oneDNN's LSTM keeps between forward and backward, in parts that begin on pages.

    As set_workspace_sizes and set_offsets (oneDNN v3, src/cpu/rnn/rnn_utils): the gates and the
    results of each step; states of each step and before, for the layer and for what it is given;
    and room for the gradients of these, which are float32.
    """
    size, single = dtype.itemsize, torch.float32.itemsize
    widest = max(I, H)
    states = 2 * (T + 1) * B
    parts = (
        T * B * leading_size(4 * H, size) * size,
        T * B * leading_size(H, size) * size,
        states * leading_size(widest, size) * size,
        states * H * size,
        states * leading_size(widest, single) * single,
        states * leading_size(widest, single) * single,
        states * H * single,
    )
    return sum(-(-part // PAGE_BYTES) * PAGE_BYTES for part in parts)


@shape_of(aten.mkldnn_rnn_layer.default)
def mkldnn_rnn_layer(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor,
    *rest: Any,
) -> Any:  # fmt: skip
    """An LSTM's layer in one direction; the workspace only where gradients are wanted.

    torch's shape function makes it empty. So it is decided in native/mkldnn/RNN.cpp.
    """
    T, B, I = x.shape  # noqa: E741
    H = hx.shape[-1]
    workspace = None
    if torch.is_grad_enabled():
        size = rnn_workspace_bytes(T, B, I, H, x.dtype)
        workspace = x.new_empty(size, dtype=torch.uint8)
    hy, cy = hx.new_empty(hx.shape), cx.new_empty(cx.shape)
    return OfThisMoment((x.new_empty((T, B, H)), hy, cy, workspace))


@shape_of(aten.mkldnn_rnn_layer_backward.default)
def mkldnn_rnn_layer_backward(
    x: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor, hx: Tensor, cx: Tensor,
    *rest: Any,
) -> Any:  # fmt: skip
    """Float32 whatever the inputs are, and each bias's gradient in storage of its own.

    torch's shape function gives one tensor for both biases; native/mkldnn/RNN.cpp copies it.
    """

    def single(*shape: int) -> Tensor:
        return x.new_empty(shape, dtype=torch.float32)

    gates = w_ih.shape[0]
    weights = single(*w_ih.shape), single(*w_hh.shape), single(gates), single(gates)
    return (single(*x.shape), *weights, single(*hx.shape), single(*cx.shape))


@shape_of(aten._thnn_fused_gru_cell.default)
def fused_gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, b_ih: Any = None, b_hh: Any = None
) -> Any:
    workspace = hx.new_empty((hx.shape[0], hx.shape[1] * 5))
    return torch.empty_like(hx), workspace


@shape_of(aten._grouped_mm.default)
def grouped_mm(
    a: Tensor, b: Tensor, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Tensor:
    """(M, K) @ (G, K, N), and the other ways to have a group dimension.

    torch's shape function takes bfloat16 only; CUDA's operator falls back for other dtypes. Rows
    start at multiples of 16 bytes (native/cuda/GroupedBlas.cpp).
    """
    rows, columns = a.shape[-2], b.shape[-1]
    if a.dim() == 2 and b.dim() == 2:
        shape: tuple[int, ...] = (offs.shape[0], rows, columns)
    elif a.dim() == 3 and b.dim() == 3:
        shape = (a.shape[0], rows, columns)
    else:
        shape = (rows, columns)
    dtype = out_dtype or a.dtype
    aligned = 16 // dtype.itemsize
    row_stride = -(-columns // aligned) * aligned
    stride = (rows * row_stride, row_stride, 1) if len(shape) == 3 else (row_stride, 1)
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


def update_in_place(*args: Any, **kwargs: Any) -> None:
    """A fused optimizer step: everything is written in place."""


for _packet in (aten._fused_sgd_, aten._fused_adagrad_):
    SHAPES[_packet.default] = update_in_place
for _packet in (aten._fused_sgd_, aten._fused_adagrad_, aten._fused_adam_, aten._fused_adamw_):
    SHAPES[_packet.tensor_lr] = update_in_place


def like_argument(number: int) -> Callable[..., Tensor]:
    """The result has an argument's shape and layout, as the gradient of that argument has."""

    def like(*args: Any, **kwargs: Any) -> Tensor:
        return torch.empty_like(args[number])

    return like


SHAPES |= {
    aten.silu_backward.default: like_argument(0),
    aten.mish_backward.default: like_argument(0),
    aten._ctc_loss_backward.default: like_argument(1),
    aten._ctc_loss_backward.Tensor: like_argument(1),
    aten.multi_margin_loss_backward.default: like_argument(1),
    aten.multilabel_margin_loss_backward.default: like_argument(1),
    aten.fractional_max_pool3d_backward.default: like_argument(1),
    aten._sample_dirichlet.default: like_argument(0),
    aten._dirichlet_grad.default: like_argument(0),
    aten._standard_gamma.default: like_argument(0),
    aten._standard_gamma_grad.default: like_argument(0),
    aten.binomial.default: like_argument(0),
}


@shape_of(aten._ctc_loss.Tensor)
def ctc_loss(log_probs: Tensor, targets: Tensor, *rest: Any, **options: Any) -> Any:
    """T, B, C: log_probs. The loss of each sequence, and alpha for every step and state."""
    steps, batch = log_probs.shape[0], log_probs.shape[1]
    longest = targets.shape[-1]  # of one-dimensional targets an upper bound: their sum
    loss = log_probs.new_empty(batch)
    return loss, log_probs.new_empty((batch, steps, 2 * longest + 1))


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def reduced_in_place(x: Tensor, target: Tensor, *options: Any, **named: Any) -> Tensor:
    """A loss that is reduced into the storage of the elements' losses, which keeps its size.

    So on CUDA as on the CPU (native/Loss.cpp, native/cuda/Loss.cu); torch's shape function tells
    the one element only.
    """
    shape = torch.broadcast_shapes(x.shape, target.shape)
    loss = torch.empty(shape, dtype=torch.result_type(x, target), device="meta")
    numbers = [option for option in (*options, *named.values()) if type(option) is int]
    reduction = numbers[0] if numbers else 1
    return loss.resize_(()) if reduction else loss


for _packet in (
    aten.mse_loss,
    aten.smooth_l1_loss,
    aten.soft_margin_loss,
    aten.binary_cross_entropy,
):
    SHAPES[_packet.default] = reduced_in_place


@shape_of(aten.convolution.default)
def convolution(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
    """Channels last where cuDNN computes so: input or weight lies that way (native/ConvUtils.h).

    torch's shape function leaves every result contiguous.
    """
    out: Tensor = aten.convolution.default(x, weight, *rest)
    if not computes_channels_last(x, weight):
        return out
    return torch.empty_like(out, memory_format=CHANNELS_LAST[out.dim()])


@shape_of(aten.convolution_backward.default)
def convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    """Gradient in the layout of the forward pass, to which it is brought (native/Convolution.cpp).

    The shape function of torch 2.11 asks the gradient's instead.
    """
    results = aten.convolution_backward.default(gradient, x, weight, *rest)
    if x.dim() not in CHANNELS_LAST:
        return results
    is_last = computes_channels_last(x, weight)
    layout = CHANNELS_LAST[x.dim()] if is_last else torch.contiguous_format
    *of_operands, of_bias = results
    return *(
        each if each is None else torch.empty_like(each, memory_format=layout)
        for each in of_operands
    ), of_bias


def computes_channels_last(x: Tensor, weight: Tensor) -> bool:
    """cuDNN's rule."""
    return x.dtype is not torch.float64 and (channels_are_last(x) or channels_are_last(weight))


def channels_are_last(tensor: Tensor) -> bool:
    strides = tensor.stride()
    return tensor.dim() in CHANNELS_LAST and convolutions.channels_are_last(tensor.shape, strides)


# Fake quantisation: the result, and where it was not clamped.


def with_mask(x: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


SHAPES |= dict.fromkeys(
    (
        aten.fake_quantize_per_tensor_affine_cachemask.default,
        aten.fake_quantize_per_channel_affine_cachemask.default,
        aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
        aten._fused_moving_avg_obs_fq_helper.default,
    ),
    with_mask,
)
SHAPES |= dict.fromkeys(
    (
        aten._fake_quantize_learnable_per_tensor_affine.default,
        aten._fake_quantize_learnable_per_channel_affine.default,
    ),
    like_argument(0),
)


def learnable_backward(grad: Tensor, x: Tensor, scale: Tensor, zero: Tensor, *rest: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(scale), torch.empty_like(zero)


SHAPES |= dict.fromkeys(
    (
        aten._fake_quantize_learnable_per_tensor_affine_backward.default,
        aten._fake_quantize_learnable_per_channel_affine_backward.default,
    ),
    learnable_backward,
)


# On lists, tensor by tensor: torch's own go through their Python decompositions hundreds of times
# (torch/_refs).


def like_lists(overload: OpOverload) -> Callable[..., Any]:
    """Results of floats by floats are like the first list's tensors, which is what the CUDA kernels
    make (`_foreach_*`, native/cuda/ForeachUnaryOp.cu, ForeachBinaryOpList.cu).
    """

    def shapes(tensors: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        forms = list(map(form_of, tensors))
        if None in forms or not all(
            list(map(form_of, arg)) == forms if isinstance(arg, list) else type(arg) in (int, float)
            for arg in args
        ):
            return overload(tensors, *args, **kwargs)
        return list(map(torch.empty_like, tensors))

    return shapes


def form_of(x: Tensor) -> tuple[Any, ...] | None:
    """Shape, layout and dtype; None where results may have others."""
    is_dense = x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last)
    return (x.shape, x.stride(), x.dtype) if is_dense and x.is_floating_point() else None


for _name in ("abs", "exp", "neg", "reciprocal", "rsqrt", "sigmoid", "sign", "sqrt", "tanh"):
    _overload = getattr(aten, f"_foreach_{_name}").default
    SHAPES[_overload] = like_lists(_overload)
for _name in ("add", "div", "mul", "sub"):
    for _kind in ("List", "Scalar"):
        _overload = getattr(getattr(aten, f"_foreach_{_name}"), _kind)
        SHAPES[_overload] = like_lists(_overload)


# Batch normalisation across devices (nn.SyncBatchNorm) in pieces: native/cuda/Normalization.cuh.


def statistics_of(x: Tensor) -> Tensor:
    """One for each channel, in the type that CUDA accumulates in."""
    halves = (torch.float16, torch.bfloat16)
    return x.new_empty(x.shape[1], dtype=torch.float32 if x.dtype in halves else x.dtype)


def two_statistics(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return statistics_of(x), statistics_of(x)


SHAPES |= dict.fromkeys(
    (
        aten.batch_norm_stats.default,
        aten.batch_norm_update_stats.default,
        aten.batch_norm_gather_stats.default,
        aten.batch_norm_gather_stats_with_counts.default,
    ),
    two_statistics,
)
SHAPES[aten.batch_norm_elemt.default] = like_argument(0)
SHAPES[aten.batch_norm_backward_elemt.default] = like_argument(1)


@shape_of(aten.batch_norm_backward_reduce.default)
def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Any,
    input_g: bool, weight_g: bool, bias_g: bool,
) -> Any:  # fmt: skip
    """The sums for the gradient of the input, then the gradients of weight and bias."""

    def of_weight(is_wanted: bool) -> Any:
        return torch.empty_like(weight) if weight is not None and is_wanted else None

    sums = two_statistics(x) if input_g else (None, None)
    return *sums, of_weight(weight_g), of_weight(bias_g)


# Linear algebra. M, N: rows and columns. R: right-hand sides. Batches come before.


@shape_of(aten.geqrf.default)
def geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """Reflectors below R, column after column as LAPACK writes them, and their scales."""
    *batch, M, N = a.shape
    columns = a.new_empty((*batch, N, M)).mT
    return columns, a.new_empty((*batch, min(M, N)))


@shape_of(aten.linalg_lstsq.default)
def lstsq(a: Tensor, b: Tensor, rcond: Any = None, *, driver: str | None = None) -> Any:
    """CUDA has the driver gels alone: it finds residuals of tall systems, no rank and no values.

    As `linalg_lstsq_out` (native/BatchLinearAlgebra.cpp).
    """
    if driver not in (None, "gels"):
        raise RuntimeError(
            f"torch.linalg.lstsq: parameter `driver` should be one of (gels) but got {driver}"
        )
    *batch, M, N = a.shape
    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    sides = () if is_vector else (b.shape[-1],)
    lead = torch.broadcast_shapes(tuple(batch), b.shape[: -1 if is_vector else -2])
    # The first N rows of what held the right-hand sides, column after column.
    solution = a.new_empty((*lead, *sides, max(M, N)))[..., :N]
    solution = solution if is_vector else solution.mT
    residuals = a.new_empty((*lead, *sides) if M > N else (0,))
    return solution, residuals, a.new_empty(0, dtype=torch.int64), a.new_empty(0)


@shape_of(aten._scaled_mm.out)
def scaled_product_into(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False, *, out: Tensor,
) -> Tensor:  # fmt: skip
    """What compiled code calls, with a result that it has memory for."""
    return out
