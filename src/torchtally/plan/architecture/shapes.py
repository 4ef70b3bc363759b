"""Models by hand: from a few sizes, or from a parameter count alone.

L: layers.  d: width.  D: head dim.  f: feed-forward width.  V: vocabulary.
"""

import math
from dataclasses import replace
from functools import lru_cache

from torchtally.errors import UsageError
from torchtally.plan.architecture.families import MOST_LAYERS
from torchtally.plan.architecture.model import FeedForward, Layer, Model, SelfAttention
from torchtally.plan.architecture.weights import weights_of

KAPLAN = "Kaplan et al. 2020, arXiv 2001.08361, sections 2.1 and 3.1"
ASPECT = 128
"""Width over layers, as in GPT-3 175B (12288 / 96). Loss hardly depends on it (Kaplan 2020)."""
FINE = 2048
"""Below this width heads have 64, as GPT-3's smaller ones do."""
ASSUMED = "assumed shape"
"""The name of a model that is a guess from a number of parameters."""
NEAR = 0.05
"""How far an assumed shape may be from the given count."""


def by_hand(
    *,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    is_tied: bool,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    feed_forward: int | None = None,
    is_gated: bool = False,
    norm: str = "rms",
    has_bias: bool = False,
    positions: int = 0,
    context: int | None = None,
    dropout: float = 0.0,
    has_relative_positions: bool = False,
    norms: int = 2,
    window: int | None = None,
    name: str = "by hand",
    source: str = "sizes given by hand",
) -> Model:
    """A decoder of equal layers. Without `kv_heads`, every head has its own key and value; without
    `head_dim`, heads share the width; without `feed_forward`, it is four widths, unless gated.

    Raises UsageError for sizes that are not above zero, or do not divide.
    """
    sizes = {
        "layers": layers, "width": width, "heads": heads, "vocabulary": vocabulary,
        "kv heads": kv_heads, "head dim": head_dim, "feed-forward width": feed_forward,
    }  # fmt: skip
    _check_sizes(sizes)
    if layers > MOST_LAYERS:
        raise UsageError(f"Expected at most {MOST_LAYERS:,} layers, got {layers:,}.")
    inner = _inner_width(width, feed_forward, is_gated)
    attention = SelfAttention(
        heads=heads,
        kv_heads=_kv_heads(heads, kv_heads),
        head_dim=_head_dim(width, heads, head_dim),
        has_bias=has_bias,
        has_output_bias=has_bias,
        is_rotary=not positions and not has_relative_positions,
        has_relative_positions=has_relative_positions,
        window=window,
    )
    layer = Layer(
        count=layers,
        attention=attention,
        feed_forward=FeedForward(
            width=inner,
            is_gated=is_gated,
            activation="silu" if is_gated else "gelu",
            has_bias=has_bias,
        ),
        norms=norms,
    )
    return Model(
        name=name, width=width, vocabulary=vocabulary, kinds=(layer,), is_tied=is_tied, norm=norm,
        positions=positions, context=context, dropout=dropout, source=source,
    )  # fmt: skip


def scale_to(parameters: int, *, vocabulary: int, is_tied: bool = False) -> Model:
    """An assumed model of about so many parameters, where only their number is known.

    Llama's kind: a gate, RMS norms, rotary positions, no biases, as many keys as heads. It follows
    N = 12 L d^2 + embeddings with d near 128 L, its heads have 128 (64 below a width of 2048), its
    own count is within 5 % of the given one, and more parameters never make a smaller model.

    Raises UsageError where no such shape comes near: a vocabulary too large for so few parameters.
    """
    _check_sizes({"parameters": parameters, "vocabulary": vocabulary})
    depth = _depth(parameters, vocabulary, is_tied)
    shapes = [(width, layers) for width in _widths(depth) for layers in _depths(width)]
    candidates = [_of_aspect(*shape, vocabulary, is_tied) for shape in shapes]
    nearest, count = min(
        candidates, key=lambda candidate: (abs(candidate[1] - parameters), candidate[1])
    )
    if abs(count / parameters - 1) > NEAR:
        raise UsageError(
            f"No usual shape has {parameters} parameters with a vocabulary of "
            f"{vocabulary}: the nearest has {count}. Give --layers, --width and --heads."
        )
    return nearest


@lru_cache(maxsize=4096)
def _of_aspect(width: int, layers: int, vocabulary: int, is_tied: bool) -> tuple[Model, int]:
    """(a model, its parameters): searches for the largest one that fits try the same many times."""
    note = f"assumed shape: {layers} layers of width {width} (width / layers near {ASPECT})"
    model = by_hand(
        layers=layers,
        width=width,
        heads=width // _usual_head_dim(width),
        vocabulary=vocabulary,
        is_tied=is_tied,
        feed_forward=_round(8 * width / 3, 64),
        is_gated=True,
        name=ASSUMED,
        source=f"a shape assumed for a parameter count: 12 * layers * width**2, {KAPLAN}",
    )
    return replace(model, notes=(note,)), sum(weight.elements for weight in weights_of(model))


def _depth(parameters: int, vocabulary: int, is_tied: bool) -> float:
    """The L of 12 L d^2 + embeddings = parameters with d = 128 L: a cubic that only rises."""
    low, high = 0.0, 1.0
    embeddings = (1 if is_tied else 2) * vocabulary * ASPECT

    def total(depth: float) -> float:
        return 12 * ASPECT**2 * depth**3 + embeddings * depth

    while total(high) < parameters:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if total(middle) < parameters else (low, middle)
    return high


def _widths(depth: float) -> tuple[int, ...]:
    """Those around d = 128 L, each an eighth of a power of two after the other: 8192, 9216, 10240.

    So the number of heads divides well, as tensor parallelism wants it.
    """
    at = depth * ASPECT
    widths = [64]
    while widths[-1] < 1.3 * at:
        widths.append(widths[-1] + max(64, _power_of_two(widths[-1]) // 8))
    return tuple(width for width in widths if width >= at / 1.3 - 64)


def _depths(width: int) -> range:
    """Numbers of layers around d / 128; for the sake of pipelines even, or by four where many."""
    least, most = width / (ASPECT + 24), width / (ASPECT - 24)
    step = 4 if width >= 64 * ASPECT else 2 if width >= 32 * ASPECT else 1
    return range(max(1, math.ceil(least / step) - 1) * step, (int(most / step) + 2) * step, step)


def _power_of_two(number: int) -> int:
    """The largest that is not above it."""
    return 1 << (number.bit_length() - 1)


def _usual_head_dim(width: int) -> int:
    return 128 if width >= FINE else 64


def _round(number: float, step: int) -> int:
    return max(step, round(number / step) * step)


def _check_sizes(sizes: dict[str, int | None]) -> None:
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise UsageError(f"{name} cannot be {size}: give a whole number above zero.")


def _kv_heads(heads: int, kv_heads: int | None) -> int:
    if kv_heads is not None and heads % kv_heads:
        raise UsageError(f"{kv_heads} kv heads do not divide {heads} heads.")
    return kv_heads or heads


def _head_dim(width: int, heads: int, head_dim: int | None) -> int:
    if head_dim is None and width % heads:
        raise UsageError(f"{heads} heads do not divide the width {width}: give the head dim too.")
    return head_dim or width // heads


def _inner_width(width: int, feed_forward: int | None, is_gated: bool) -> int:
    if feed_forward is None and is_gated:
        raise UsageError("A gated feed-forward has no default width: give --ffn.")
    return feed_forward or 4 * width
