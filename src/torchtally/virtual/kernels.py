"""Operators that PyTorch composes differently on CUDA: dropout, fused norms, RNNs, attention.

On the CPU (and meta) torch decomposes them otherwise, in C++, after a test such as `is_cuda()`.
The kernels here are registered for AutogradMeta and take CUDA's branch for virtual GPU tensors.
Under inference mode autograd keys are excluded, and the dispatch mode calls the same functions
(`KERNELS`).

A session may take the host's branches instead (`dispatch="cpu"`), to be compared with a real run on
a machine without a GPU. Meta tensors take those by themselves, except for `HOST_KERNELS`.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.library import Library

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.torch_private import OpOverload, releases
from torchtally.virtual import attention
from torchtally.virtual.attention import Backend, Query
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.masks import additive, align, keep_attended
from torchtally.virtual.storage import virtual_of

aten = torch.ops.aten

Kernel = Callable[..., Any]
Kernels = dict[OpOverload, Kernel]
KERNELS: Kernels = {}
"""CUDA's branches."""
HOST_KERNELS: Kernels = {}
"""The CPU's, where a meta tensor would take neither."""

Dispatch = Literal["cuda", "cpu"]
BRANCHES: dict[Dispatch, Kernels] = {"cuda": KERNELS, "cpu": HOST_KERNELS}


def kernel(overload: OpOverload, *tables: Kernels) -> Callable[[Kernel], Kernel]:
    """Register a branch of a composite operator: CUDA's unless tables are given."""

    def register(branch: Kernel) -> Kernel:
        for table in tables or (KERNELS,):
            table[overload] = branch
        return branch

    return register


class Target:
    """The chip whose branch is taken: one per process, set while a session is active."""

    chip: Chip | None = None
    branches: Kernels = KERNELS


def is_on_gpu(tensor: Tensor) -> bool:
    """A wrapper subclass (DTensor) is where the tensors are that it holds."""
    held = private.tensors_inside(private.unwrap(tensor))
    virtual = virtual_of(held[0]) if held else None
    return virtual is not None and isinstance(virtual.home, DeviceMemory)


def register(dispatch: Dispatch = "cuda") -> list[Library]:
    """Register all kernels for virtual tensors. The libraries returned keep them alive."""
    Target.branches = BRANCHES[dispatch]
    library = Library("aten", "IMPL")
    for overload, branch in Target.branches.items():
        name = overload.name().removeprefix("aten::")
        library.impl(name, on_gpu_only(overload, branch), "AutogradMeta")
    return [library]


def branch_of(overload: OpOverload) -> Kernel:
    """What a composite operator decomposes into on the virtual GPU."""
    branch = Target.branches.get(overload)
    return overload.decompose if branch is None else on_gpu_only(overload, branch)


def on_gpu_only(overload: OpOverload, branch: Kernel) -> Kernel:
    def run(*args: Any, **kwargs: Any) -> Any:
        if isinstance(args[0], Tensor) and is_on_gpu(args[0]):
            return branch(*args, **kwargs)
        return overload.decompose(*args, **kwargs)

    return run


@kernel(aten.dropout.default)
def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """CUDA draws mask and product in one kernel (native/Dropout.cpp)."""
    if p == 0 or not train or x.numel() == 0:
        return x
    if p < 1:
        return torch.native_dropout(x, p, train)[0]
    return aten.dropout.default.decompose(x, p, train)  # type: ignore[no-any-return]


@kernel(aten.one_hot.default, KERNELS, HOST_KERNELS)
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """Zeros and a scatter (native/Onehot.cpp); meta tensors would compare with an arange."""
    if num_classes == -1:
        num_classes = int(x.max().item()) + 1
    zeros = torch.zeros((*x.shape, num_classes), dtype=torch.int64, device="cuda")
    return zeros.scatter_(-1, x.unsqueeze(-1), 1)


def one_operator(overload: OpOverload) -> Kernel:
    """An operator that has one kernel on every device but meta, where it is decomposed."""

    def run(*args: Any) -> Any:
        with private.below_autograd():
            return overload(*args)

    return run


for _overload in (aten.silu_backward.default, aten.mish_backward.default):
    kernel(_overload, KERNELS, HOST_KERNELS)(one_operator(_overload))


class FusedRMSNorm(torch.autograd.Function):
    """One kernel forward and one backward, with the reciprocal of the root mean square saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: list[int], weight: Tensor | None, eps: Any) -> Tensor:
        with private.below_autograd():
            y, rstd = aten._fused_rms_norm.default(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.shape = shape
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, rstd = ctx.saved_tensors
        mask = [ctx.needs_input_grad[0], weight is not None and ctx.needs_input_grad[2]]
        dx, dweight = aten._fused_rms_norm_backward.default(dy, x, ctx.shape, rstd, weight, mask)
        return dx, None, dweight, None


@kernel(aten.rms_norm.default)
def rms_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Fused since PyTorch 2.9, unless input and weight differ in dtype (native/layer_norm.cpp)."""
    if weight is not None and weight.dtype is not x.dtype:
        return aten.rms_norm.default.decompose(x, normalized_shape, weight, eps)  # type: ignore[no-any-return]
    apply: Callable[..., Tensor] = FusedRMSNorm.apply
    return apply(x, list(normalized_shape), weight, eps)


@kernel(aten.batch_norm.default)
def batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Tensor:
    """cuDNN's where `_select_batch_norm_backend` (native/Normalization.cpp) would take it."""
    use_cudnn = (
        cudnn_enabled
        and weight is not None
        and bias is not None
        and x.dtype is not torch.bfloat16
        and weight.dtype is not torch.bfloat16
        and (x.dtype is not torch.float16 or weight.dtype is torch.float32)
        and ((mean is None) == (var is None))
        and (mean is not None or training)
        and x.dim() >= 3
        and x.shape[0] <= (880801 if training else 65535)
        and eps >= 0.0
        and 0 < x.numel() < 2**31 - 1
    )
    if use_cudnn:
        return aten.cudnn_batch_norm.default(x, weight, bias, mean, var, training, momentum, eps)[0]  # type: ignore[no-any-return]
    return torch.native_batch_norm(x, weight, bias, mean, var, training, momentum, eps)[0]


# Recurrent networks: cuDNN's modes are numbered as in torch.backends.cudnn.rnn.

RELU, TANH, LSTM, GRU = range(4)


def cudnn_rnn(
    mode: int,
    x: Tensor,
    batch_sizes: list[int],
    hx: Tensor,
    cx: Tensor | None,
    params: list[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Output, last hidden state, last cell state (LSTM only), all by one cuDNN call."""
    x, hx, *params = (in_autocast_dtype(param) for param in (x, hx, *params))
    cx = None if cx is None else in_autocast_dtype(cx)
    per_layer = 4 if has_biases else 2
    hidden = params[1].shape[1] if mode != LSTM else (cx.shape[2] if cx is not None else 0)
    projected = hx.shape[2] if mode == LSTM and hx.shape[2] != hidden else 0
    if projected:
        per_layer += 1
    output, hy, cy, _reserve, _buffer = aten._cudnn_rnn.default(
        x.contiguous(), params, per_layer, None, hx.contiguous(),
        None if cx is None else cx.contiguous(), mode, hidden, projected, layers, batch_first,
        dropout, train, bidirectional, batch_sizes, None,
    )  # fmt: skip
    return (output, hy, cy) if mode == LSTM else (output, hy)


def in_autocast_dtype(tensor: Tensor) -> Tensor:
    """Tensor cast as for cuDNN's RNNs under autocast (aten/src/ATen/cudnn/AutocastRNN.cpp).

    There the weights' copies lie in one buffer; here they are tensors, of the same bytes together.
    """
    if not torch.is_autocast_enabled("cuda") or tensor.dtype is not torch.float32:
        return tensor
    return tensor.to(torch.get_autocast_dtype("cuda"))


@kernel(aten.lstm.input)
def lstm_input(
    x: Tensor, hx: list[Tensor], params: list[Tensor], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    return cudnn_rnn(LSTM, x, [], hx[0], hx[1], params, has_biases, layers, dropout, train,
                     bidirectional, batch_first)  # fmt: skip


@kernel(aten.lstm.data)
def lstm_data(
    x: Tensor, batch_sizes: Tensor, hx: list[Tensor], params: list[Tensor], has_biases: bool,
    layers: int, dropout: float, train: bool, bidirectional: bool,
) -> Any:  # fmt: skip
    return cudnn_rnn(LSTM, x, batch_sizes.tolist(), hx[0], hx[1], params, has_biases, layers,
                     dropout, train, bidirectional, False)  # fmt: skip


def takes_onednn_rnn(x: Tensor, hx: list[Tensor]) -> bool:
    """Whether oneDNN is taken, as by `use_mkldnn` and `lstm` of native/RNN.cpp: no projection, and
    a dtype oneDNN trains in.
    """
    is_known = (
        x.dtype is torch.float32
        or (x.dtype is torch.bfloat16 and private.onednn_has_bfloat16())
        or (
            x.dtype is torch.float16
            and not torch.is_grad_enabled()
            and private.onednn_has_float16()
        )
    )
    is_on = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    return is_on and is_known and x.numel() != 0 and hx[0].shape[2] == hx[1].shape[2]


@kernel(aten.lstm.input, HOST_KERNELS)
def lstm_input_of_host(
    x: Tensor, hx: list[Tensor], params: list[Tensor], has_biases: bool, layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """One call of oneDNN for each layer and direction (`mkldnn_rnn` in native/mkldnn/RNN.cpp).

    Variables live as long as there: the first input to the end, a layer's output until the next
    layer has its own. Storages die with them.
    """
    if not takes_onednn_rnn(x, hx):
        return private.run_composite_kernel(
            aten.lstm.input, x, hx, params, has_biases, layers, dropout, train, bidirectional,
            batch_first,
        )  # fmt: skip
    first_input = layer_input = (x.transpose(0, 1) if batch_first else x).contiguous()
    hx = [state.contiguous() for state in hx]
    directions, per_layer = 2 if bidirectional else 1, 4 if has_biases else 2
    outputs: list[Tensor] = [first_input] * directions
    states: list[tuple[Tensor, Tensor]] = []
    for layer in range(layers):
        for direction in range(directions):
            index = layer * directions + direction
            weights = params[index * per_layer : (index + 1) * per_layer]
            literals: tuple[Any, ...] = (
                direction > 0, [], LSTM, hx[0].shape[2], layers, has_biases, bidirectional,
                batch_first, train,
            )  # fmt: skip
            outputs[direction], *last = onednn_layer(layer_input, weights, hx, index, literals)
            states.append((last[0], last[1]))
        layer_input = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout != 0 and train and layer < layers - 1:
            layer_input = torch.dropout(layer_input, dropout, True)
    hy, cy = (torch.stack(each) for each in zip(*states, strict=True))
    return layer_input.transpose(0, 1) if batch_first else layer_input, hy, cy


def onednn_layer(
    x: Tensor, weights: list[Tensor], hx: list[Tensor], index: int, literals: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, last hidden and last cell state of one layer in one direction.

    Missing biases are zeros in the shapes of the weights, never read (`mkldnn_rnn`). Tensors are
    made in the order in which GCC evaluates a call's arguments: the last one first.
    """
    state, cell = hx[0][index], hx[1][index]
    if len(weights) == 2:
        of_hidden, of_input = (
            torch.zeros(weight.shape, dtype=weight.dtype, device=weight.device)
            for weight in reversed(weights)
        )
        weights = [*weights, of_input, of_hidden]
    tensors = [in_autocast_dtype(weight) for weight in reversed([x, *weights, state, cell])]
    return aten.mkldnn_rnn_layer.default(*reversed(tensors), *literals)[:3]  # type: ignore[no-any-return]


def single_state(mode: int) -> tuple[Kernel, Kernel]:
    """Both forms (padded and packed) of an RNN with one hidden state."""

    def run_padded(
        x: Tensor, hx: Tensor, params: list[Tensor], has_biases: bool, layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        return cudnn_rnn(mode, x, [], hx, None, params, has_biases, layers, dropout, train,
                         bidirectional, batch_first)  # fmt: skip

    def run_packed(
        x: Tensor, batch_sizes: Tensor, hx: Tensor, params: list[Tensor], has_biases: bool,
        layers: int, dropout: float, train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        return cudnn_rnn(mode, x, batch_sizes.tolist(), hx, None, params, has_biases, layers,
                         dropout, train, bidirectional, False)  # fmt: skip

    return run_padded, run_packed


for _packet, _mode in ((aten.gru, GRU), (aten.rnn_tanh, TANH), (aten.rnn_relu, RELU)):
    KERNELS[_packet.input], KERNELS[_packet.data] = single_state(_mode)


@kernel(aten.lstm_cell.default)
def lstm_cell(
    x: Tensor,
    hx: list[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    """Two products and one fused pointwise kernel (native/RNN.cpp)."""
    gates = torch.mm(x, w_ih.t()), torch.mm(hx[0], w_hh.t())
    return aten._thnn_fused_lstm_cell.default(*gates, hx[1], b_ih, b_hh)[:2]


@kernel(aten.ctc_loss.Tensor)
def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor,
    blank: int = 0, reduction: int = 1, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """Lengths are read on the host first (native/LossCTC.cpp), so they are numbers from here on."""
    lengths = input_lengths.tolist(), target_lengths.tolist()
    return aten.ctc_loss.IntList(log_probs, targets, *lengths, blank, reduction, zero_infinity)


# Attention.


Attention = Callable[..., Tensor]


def with_a_batch(attention: Attention) -> Attention:
    """Three dimensions as a batch of one, in releases of torch that take them so."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        if not releases.HERE.fuses_attention_of_3d or {3} != {t.dim() for t in (query, key, value)}:
            return attention(query, key, value, attn_mask, *args, **kwargs)
        while attn_mask is not None and attn_mask.dim() < 4:
            attn_mask = attn_mask.unsqueeze(0)
        batches = (tensor.unsqueeze(0) for tensor in (query, key, value))
        return attention(*batches, attn_mask, *args, **kwargs).squeeze(0)

    return attend


@kernel(aten.scaled_dot_product_attention.default)
@with_a_batch
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as of native/transformers/attention.cpp: mask made float, head padded, the chosen
    kernel run.
    """
    assert Target.chip is not None
    query_set = Query(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    backend = attention.choose(Target.chip, query_set)
    mask = additive(attn_mask, query.dtype)
    scores = (*query.shape[:-1], key.shape[-2])
    if backend is Backend.FLASH:
        return flash(query, key, value, dropout_p, is_causal, scale)
    if backend is Backend.CUDNN:
        keep_attended(attn_mask, mask, scores)
        return aten._scaled_dot_product_cudnn_attention.default(  # type: ignore[no-any-return]
            query, key, value, mask, query_set.needs_grad, dropout_p, is_causal, False, scale=scale
        )[0]
    if backend is Backend.EFFICIENT:
        if mask is not None:
            mask = align(mask).expand(scores)
            keep_attended(attn_mask, mask, scores)
        return aten._scaled_dot_product_efficient_attention.default(  # type: ignore[no-any-return]
            query, key, value, mask, query_set.needs_grad, dropout_p, is_causal, scale=scale
        )[0]
    return plain_products(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)


@kernel(aten.scaled_dot_product_attention.default, HOST_KERNELS)
@with_a_batch
def scaled_dot_product_attention_of_host(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Flash attention for the CPU where torch would choose it, else plain products."""
    arguments = (query, key, value, attn_mask, dropout_p, is_causal)
    is_flash = private.host_chooses_flash(*arguments, scale=scale, enable_gqa=enable_gqa)
    mask = additive(attn_mask, query.dtype)
    if is_flash:
        return aten._scaled_dot_product_flash_attention_for_cpu.default(  # type: ignore[no-any-return]
            query, key, value, dropout_p, is_causal, attn_mask=mask, scale=scale
        )[0]
    return plain_products(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa)


def plain_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float,
    is_causal: bool, scale: float | None, enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """Scores written out. The mask is added into them: see `special.add`."""
    return aten._scaled_dot_product_attention_math.default(  # type: ignore[no-any-return]
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: Any
) -> Tensor:
    """Flash attention; head sizes are padded to a multiple of 8 first and cut after."""
    head = query.shape[-1]
    if padding := -head % 8:
        query, key, value = (torch.nn.functional.pad(t, (0, padding)) for t in (query, key, value))
        scale = head**-0.5 if scale is None else scale
    out: Tensor = aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :head] if padding else out
