"""Attention on one chip, forward and backward: a kernel of its own, or product by product.

b: micro-batch.  S: queries of one chip.  T: keys.  D, E: head dims of keys and of values.
"""

from collections.abc import Mapping
from dataclasses import replace

from torchtally.chips import Chip
from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.geometry import geometry_of, needs_mask
from torchtally.plan.architecture.model import LatentAttention, Layer, Model, SelfAttention
from torchtally.plan.parallel import passes
from torchtally.plan.parallel.kernels import ROOFLINE, KernelTimes, PassTimes, word_of
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.step import Workload
from torchtally.plan.quantity import Quantity, of, total_s
from torchtally.timing.roofline.attention import AttentionShape, Fused, fused_kernel
from torchtally.timing.roofline.launches import fused_attention_launches
from torchtally.units import Unit
from torchtally.work.geometry import Geometry

ATTENTIONS: Mapping[str, tuple[AttentionKernel, Fused | None]] = {
    "flash": (AttentionKernel.FLASH, None),
    "math": (AttentionKernel.MATH, None),
    "cudnn": (AttentionKernel.FLASH, Fused.CUDNN),
    "fa1": (AttentionKernel.FLASH, Fused.FLASH_1),
    "fa2": (AttentionKernel.FLASH, Fused.FLASH),
    "fa3": (AttentionKernel.FLASH, Fused.FLASH_3),
}
"""By a short name: what is kept, and whose kernel; None: PyTorch's choice."""


def attention_s(
    kind: Layer, model: Model, sequence: int, layout: Layout, work: KernelTimes
) -> PassTimes:
    """Scores and their products with values, forward and backward.

    Chips of context parallelism have pieces of the front and of the back, so each does an equal
    part of what the layer's geometry leaves. A kernel that is given a mask does all.
    """
    attention, b = kind.attention, layout.micro_batch
    if attention is None:
        return PassTimes(of(0.0, Unit.SECONDS), of(0.0, Unit.SECONDS), 0, 0)
    is_masked = is_given_mask(attention, sequence, layout)
    heads = attention.heads // layout.inner_split
    D, E = attention.head_dim, attention.head_dim
    kv_heads = heads
    if isinstance(attention, LatentAttention):
        E = attention.value_head_dim
    elif not is_masked:
        kv_heads = attention.kv_heads // layout.inner_split
    S, T = layout.tokens(sequence) // b, sequence
    dropout = model.dropout if model.attention_dropout is None else model.attention_dropout
    is_dropped = dropout > 0
    if layout.kernel is AttentionKernel.MATH:
        return _math_attention((b * heads, S, T, D, E), is_dropped, layout, work)
    geometry = Geometry(queries=T, keys=T) if is_masked else geometry_of(attention, sequence)
    shape = AttentionShape(b * heads, S, T, D, E, geometry, is_backward=False)
    dtype, chip = work.recipe.activations, work.chip
    kernel = work.fused or kernel_of(
        chip, dtype, attention, layout, is_masked=is_masked, is_dropped=is_dropped
    )
    size = DTYPE_BYTES[dtype]
    operands = size * b * (heads * S * (D + E) + kv_heads * T * (D + E))
    beside = 4 * b * heads * S + (size * b * S * T if is_masked else 0)  # log-sum-exp, mask
    there = fused_kernel((shape,), dtype, kernel, operands + beside, chip)
    # Again, with gradients as large; the result is read with its own.
    moved = 2 * operands + size * b * heads * S * E + beside
    back = fused_kernel((replace(shape, is_backward=True),), dtype, kernel, moved, chip)
    note = f"({b}, {heads}, {S}, {D}) with ({b}, {kv_heads}, {T}, {E}), {_in_words(geometry)}"
    return PassTimes(
        Quantity("attention", there.seconds, Unit.SECONDS, source=ROOFLINE, note=note),
        Quantity("attention, backward", back.seconds, Unit.SECONDS, source=ROOFLINE, note=note),
        fused_attention_launches(dtype, kernel, is_backward=False),
        fused_attention_launches(dtype, kernel, is_backward=True),
    )


def is_given_mask(
    attention: SelfAttention | LatentAttention | None, sequence: int, layout: Layout
) -> bool:
    """A window is a mask to transformers' modules. Kernels made for it skip what it leaves out."""
    return layout.implementation is Implementation.EAGER and needs_mask(attention, sequence)


def fused_kernels(layout: Layout, workload: Workload) -> tuple[Fused, ...]:
    """Fused kernels of each kind of layer: the one that was asked for, or PyTorch's choice."""
    model, dtype = workload.model, workload.recipe.activations
    dropout = model.dropout if model.attention_dropout is None else model.attention_dropout
    return tuple(
        workload.fused
        or kernel_of(
            workload.cluster.chip,
            dtype,
            kind.attention,
            layout,
            is_masked=is_given_mask(kind.attention, workload.sequence, layout),
            is_dropped=dropout > 0,
        )
        for kind in model.kinds
        if kind.attention is not None
    )


def kernel_of(
    chip: Chip,
    dtype: str,
    attention: SelfAttention | LatentAttention,
    layout: Layout,
    *,
    is_masked: bool,
    is_dropped: bool,
) -> Fused:
    """Which of PyTorch's kernels trains: by the rules of sdp_utils.cpp, which
    `virtual/attention.py` has in full. cuDNN is first on Hopper and data-center Blackwell, and
    drops sixteenths alone, which nobody takes; flash takes no mask; what neither takes, and
    float32, is left to the memory-efficient one.
    """
    if DTYPE_BYTES[dtype] > 2:
        return Fused.EFFICIENT
    if layout.implementation is Implementation.FUSED:
        return Fused.CUDNN
    D = E = attention.head_dim
    if isinstance(attention, LatentAttention):
        E = attention.value_head_dim
    fits_cudnn = max(D, E) <= CUDNN_MOST_HEAD_DIM or (D, E) == DEEPSEEK_HEAD_DIMS
    is_aligned = D % 8 == 0 and E % 8 == 0
    if chip.sm.prefers_cudnn_attention and fits_cudnn and is_aligned and not is_dropped:
        return Fused.CUDNN
    fits_flash = D == E and D <= FLASH_MOST_HEAD_DIM
    if not chip.sm.trains_large_heads and D > SMALL_HEAD_DIM:
        fits_flash &= D > LARGE_HEAD_DIM and not is_dropped
    return Fused.FLASH if fits_flash and not is_masked else Fused.EFFICIENT


CUDNN_MOST_HEAD_DIM = 128
DEEPSEEK_HEAD_DIMS = (192, 128)
"""Of keys and of values: DeepSeek's, which cuDNN takes as well."""
FLASH_MOST_HEAD_DIM = 256
SMALL_HEAD_DIM, LARGE_HEAD_DIM = 192, 224
"""Outside of data centers flash does not train head dims between these, nor above them with
dropout."""


def _in_words(geometry: Geometry) -> str:
    if geometry.after is None:
        return "with a mask"
    if geometry.chunk is not None:
        return f"causal, in chunks of {geometry.chunk}"
    return "causal" if geometry.before is None else f"causal, window {geometry.before + 1}"


def _math_attention(
    shape: tuple[int, int, int, int, int], is_dropped: bool, layout: Layout, work: KernelTimes
) -> PassTimes:
    """Times of attention as plain products, with the scores in memory between them; masked or
    not.
    """
    (heads, S, T, D, E), size = shape, work.recipe.activation_bytes
    dtype = work.recipe.uncast_products
    first = work.product("scores", heads, S, T, D, dtype)
    second = work.product("values", heads, S, E, T, dtype)
    gradients = [
        work.product("gradient of scores", heads, S, T, E, dtype),
        work.product("gradient of values", heads, T, E, S, dtype),
        work.product("gradient of queries", heads, S, D, T, dtype),
        work.product("gradient of keys", heads, T, D, S, dtype),
    ]
    streams = [work.stream("passes", heads * S * T, passes.scores(layout.implementation, size))]
    if is_dropped:
        moved = passes.dropout(Implementation.EAGER, size)
        streams.append(work.stream("dropout", heads * S * T, moved))
    forward = {"scores": first, "values": second}
    forward |= {word_of(stream.forward): stream.forward for stream in streams}
    backward = {word_of(gradient): gradient for gradient in gradients}
    backward |= {word_of(stream.forward): stream.backward for stream in streams}
    return PassTimes(
        total_s("attention", **forward),
        total_s("attention, backward", **backward),
        2 + sum(stream.forward_launches for stream in streams),
        len(gradients) + sum(stream.backward_launches for stream in streams),
    )
