"""Attention on one chip, forward and backward: a kernel of its own, or product by product.

b: micro-batch.  S: queries of one chip.  T: keys.  D, E: head dims of keys and of values.
"""

from math import ceil

from msgspec.structs import replace

from torchtally.chips import Chip
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.model import LatentAttention, Layer, Model
from torchtally.plan.flops import keys_seen
from torchtally.plan.parallel import passes
from torchtally.plan.parallel.kernels import ROOFLINE, KernelTimes, Pair, word_of
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.quantity import Quantity, total_s
from torchtally.timing.roofline.attention import attention_kernel
from torchtally.trace import Call, TensorSpec
from torchtally.units import Unit
from torchtally.work import cost_of
from torchtally.work.convention import Convention


def attention_s(
    kind: Layer, model: Model, sequence: int, layout: Layout, work: KernelTimes
) -> Pair:
    """Scores and their products with values, forward and backward, causal.

    Chips of context parallelism have pieces of the front and of the back, so each does an equal
    part. A window is as many keys as a token sees on average.
    """
    attention = kind.attention
    heads = attention.heads // layout.inner_split
    if isinstance(attention, LatentAttention):
        kv_heads, value_dim, window = heads, attention.value_head_dim, None
    else:
        kv_heads, value_dim, window = (
            attention.kv_heads // layout.inner_split,
            attention.head_dim,
            attention.window,
        )
    # A causal kernel over T keys does half of them: T is twice what a token sees.
    T = ceil(2 * keys_seen(sequence, window, Convention.CAUSAL).value)
    S, b = layout.tokens(sequence) // layout.micro_batch, layout.micro_batch
    if layout.kernel is AttentionKernel.MATH:
        dropped = model.dropout if model.attention_dropout is None else model.attention_dropout
        return _math_attention(
            (b * heads, S, sequence, attention.head_dim, value_dim), dropped > 0, layout, work
        )
    dtype = work.recipe.activations
    query, key, value, out, grad = (
        _spec(name, shape, dtype, storage)
        for storage, (name, shape) in enumerate(
            (
                ("query", (b, heads, S, attention.head_dim)),
                ("key", (b, kv_heads, T, attention.head_dim)),
                ("value", (b, kv_heads, T, value_dim)),
                ("out", (b, heads, S, value_dim)),
                ("grad_out", (b, heads, S, value_dim)),
            )
        )
    )
    results = tuple(
        replace(spec, argument="", storage=spec.storage + 5) for spec in (query, key, value)
    )
    note = (
        f"({b}, {heads}, {S}, {attention.head_dim}) with ({b}, {kv_heads}, "
        f"{T}, {value_dim}), causal"
    )
    name = "aten._scaled_dot_product_cudnn_attention"
    forward = _call(name, (query, key, value), (out,))
    backward = _call(f"{name}_backward", (grad, query, key, value, out), results)
    there_s, back_s = _kernel_s(forward, work.chip), _kernel_s(backward, work.chip)
    return (
        Quantity("attention", there_s, Unit.SECONDS, source=ROOFLINE, note=note),
        Quantity("attention, backward", back_s, Unit.SECONDS, source=ROOFLINE, note=note),
    )


def _math_attention(
    shape: tuple[int, int, int, int, int], is_dropped: bool, layout: Layout, work: KernelTimes
) -> Pair:
    """As plain products, with the scores in memory between them; masked or not."""
    (heads, S, T, D, E), size = shape, work.recipe.activation_bytes
    first = work.product("scores", heads, S, T, D)
    second = work.product("values", heads, S, E, T)
    gradients = [
        work.product("gradient of scores", heads, S, T, E),
        work.product("gradient of values", heads, T, E, S),
        work.product("gradient of queries", heads, S, D, T),
        work.product("gradient of keys", heads, T, D, S),
    ]
    there, back = work.stream("scores", heads * S * T, passes.scores(layout.implementation, size))
    forward = {"scores": first, "values": second, "passes": there}
    backward = {word_of(gradient): gradient for gradient in gradients} | {"passes": back}
    if is_dropped:
        moved = passes.dropout(Implementation.EAGER, size)
        forward["dropout"], backward["dropout"] = work.stream("dropout", heads * S * T, moved)
    return total_s("attention", **forward), total_s("attention, backward", **backward)


def _kernel_s(call: Call, chip: Chip) -> float:
    _, cost = cost_of(call)
    return attention_kernel(call, cost, chip).seconds


def _spec(argument: str, shape: tuple[int, int, int, int], dtype: str, storage: int) -> TensorSpec:
    _, h, s, D = shape
    return TensorSpec(argument, shape, (h * s * D, s * D, D, 1), dtype, "cuda:0", storage)


def _call(name: str, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Call:
    return Call(name, "default", inputs, outputs, (("is_causal", True),))
