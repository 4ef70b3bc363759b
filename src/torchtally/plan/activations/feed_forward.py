"""What feed-forwards keep: dense ones, and mixtures of experts."""

from collections.abc import Iterator

from torchtally.plan.activations.operators import (
    KEEPS_OUTPUT,
    STREAM,
    TOKENS,
    activated_bytes,
    activated_saved,
    products_saved,
    shifted_saved,
)
from torchtally.plan.activations.saved import Region, Saved
from torchtally.plan.activations.setting import FLOAT32_BYTES, INT64_BYTES, Setting
from torchtally.plan.adapters import DOWN
from torchtally.plan.architecture.model import Experts, FeedForward
from torchtally.plan.architecture.weights import RECEPTANCE, first_projections

INNER = Region.INNER
ROUTED = f"{TOKENS} * active"
"""Rows that go through experts: each token's, once for each expert that is chosen for it."""


def feed_forward_saved(
    at: Setting,
    feed_forward: FeedForward,
    given_bytes: int,
    *,
    is_input_kept: bool = False,
    has_inner: bool = True,
) -> Iterator[Saved]:
    """All that a dense feed-forward keeps, its input's copy for its products among it. Without
    `has_inner`, nothing between its matrices has a gradient.
    """
    weights = first_projections(feed_forward)
    if feed_forward.has_receptance:
        mixed = (*weights, RECEPTANCE)
        yield from shifted_saved(at, "input of feed-forward", given_bytes, mixed)
        yield at.keep("receptance and result", f"2 * {STREAM}", at.inner_bytes, Region.WHOLE,
                       "sigmoid, and their product")  # fmt: skip
    else:
        yield from products_saved(
            at, "input of feed-forward", STREAM, given_bytes, weights, is_kept_already=is_input_kept
        )
    if has_inner:
        yield from _inner_saved(at, feed_forward)
        return
    yield from products_saved(
        at, "input of the last projection", f"{TOKENS} * ffn_width", at.inner_bytes, (DOWN,), INNER,
        ffn_width=feed_forward.width,
    )  # fmt: skip


def experts_saved(at: Setting, experts: Experts, given_bytes: int) -> Iterator[Saved]:
    """All that a mixture keeps: exact where no token is dropped."""
    shared = experts.shared
    yield from _router_saved(at, experts, given_bytes)
    if shared is not None:
        weights = (*first_projections(shared), *(["shared gate"] * experts.has_shared_gate))
        is_shared_input = given_bytes == at.operand_bytes and not _is_router_wide(at, experts)
        yield from products_saved(
            at,
            "input of shared experts",
            STREAM,
            given_bytes,
            weights,
            is_kept_already=is_shared_input,
        )
    yield from _routed_saved(at, experts)
    if shared is not None:
        yield from _inner_saved(at, shared)
    if experts.has_shared_gate:
        yield at.keep("result of shared experts", STREAM, at.inner_bytes, why="times its gate")
        yield at.keep("shared gate", TOKENS, at.inner_bytes, why="sigmoid, and its product")


def choice_saved(at: Setting, experts: Experts) -> Iterator[Saved]:
    """What recomputation by operators keeps of a mixture: who was chosen, what chips exchange."""
    active = experts.active
    yield at.keep("chosen experts", ROUTED, INT64_BYTES, why="topk", active=active)
    yield at.keep("their scores", ROUTED, FLOAT32_BYTES, why="topk", active=active)
    if at.is_exchanged:
        rows = f"2 * {ROUTED} * width"
        yield at.keep("rows there and back", rows, at.stream_bytes, why="all-to-all", active=active)


def _inner_saved(at: Setting, feed_forward: FeedForward) -> Iterator[Saved]:
    """Saved tensors between the first projections and the last one."""
    width, size, inner = f"{TOKENS} * ffn_width", at.inner_bytes, feed_forward.width
    has_gate, has_up = _have_gradients(at, feed_forward)
    if has_gate:
        yield from activated_saved(
            at, feed_forward.activation, width, size, INNER, first_projections(feed_forward)[0],
            ffn_width=inner,
        )  # fmt: skip
    result = activated_bytes(at, feed_forward.activation, size)
    if feed_forward.is_gated:
        if has_up and not at.is_fused:
            yield at.keep("activated gate", width, result, INNER, "its product", ffn_width=inner)
        if has_gate:
            up = at.keep("up", width, size, INNER, "product with the gate", ffn_width=inner)
            yield up.made_by(first_projections(feed_forward)[-1])
    is_kept = (
        not feed_forward.is_gated and feed_forward.activation in KEEPS_OUTPUT and not at.is_fused
    )
    if is_kept:
        yield at.keep("activated", width, size, INNER, feed_forward.activation, ffn_width=inner)
    yield from products_saved(
        at, "input of the last projection", width, result, (DOWN,), INNER, is_kept_already=is_kept,
        ffn_width=inner,
    )  # fmt: skip


def _have_gradients(at: Setting, feed_forward: FeedForward) -> tuple[bool, bool]:
    """Whether the gate has a gradient, and what it is multiplied by: of adapters' first layer alone
    one may have none, and then the other one is not kept for it.
    """
    if at.first is None:
        return True, True
    gate, *up = map(at.first.has_result, first_projections(feed_forward))
    return gate, up[0] if up else gate


def _is_router_wide(at: Setting, experts: Experts) -> bool:
    """Whether the router is in float32: it is, but where autocast makes it narrow."""
    return experts.is_router_wide and at.inner_bytes < FLOAT32_BYTES and not at.is_mixed_eagerly


def _router_saved(at: Setting, experts: Experts, given_bytes: int) -> Iterator[Saved]:
    if _is_router_wide(at, experts):
        if _is_trained(at, "router"):
            yield at.keep("input of the router, float32", STREAM, FLOAT32_BYTES, why="its gradient")
        yield at.keep("router, float32", "experts * width", FLOAT32_BYTES, Region.WHOLE,
                       "gradient of its input", experts=experts.experts)  # fmt: skip
    elif at.adapter is None:
        yield from products_saved(at, "input of the router", STREAM, given_bytes, ("router",))
    elif _is_trained(at, "router"):
        yield at.keep("input of the router", STREAM, given_bytes, why="its gradient")
        yield at.keep("router with its adapter", "experts * width", at.inner_bytes, Region.WHOLE,
                       "gradient of its input", experts=experts.experts)  # fmt: skip
    size = FLOAT32_BYTES
    yield at.keep("scores of experts", f"{TOKENS} * experts", size, why="their softmax",
                   experts=experts.experts)  # fmt: skip
    yield at.keep("chosen experts", ROUTED, INT64_BYTES, why="topk", active=experts.active)
    if experts.is_normalised:
        yield at.keep(
            "weights of experts", ROUTED, size, why="their sum is made 1", active=experts.active
        )
        yield at.keep("sum of weights", TOKENS, FLOAT32_BYTES, why="their sum is made 1")


def _routed_saved(at: Setting, experts: Experts) -> Iterator[Saved]:
    """Rows in the order of their experts, for products of groups of rows.

    Autocast does not know `torch._grouped_mm`, which then runs in the dtype of the stream.
    """
    size = at.stream_bytes
    rows, inner = f"{ROUTED} * width", f"{ROUTED} * ffn_width"
    is_all = experts.are_all_run and not at.is_fused
    active = experts.experts if is_all else experts.active
    sizes = {"active": active, "ffn_width": experts.width}
    if is_all:
        yield at.keep("repeated rows", rows, size, Region.STREAM, "times their scores", **sizes)
    yield from _merged_saved(at, "experts in", rank_parts=1 + experts.is_gated)
    yield from _merged_saved(at, "experts out")
    if _is_trained(at, "experts in"):
        yield at.keep("rows for experts", rows, _operand(at), Region.STREAM,
                       "their weights' gradients", **sizes)  # fmt: skip
    times = "2 * " if experts.is_gated else ""
    yield at.keep("gate and up" if experts.is_gated else "up", times + inner, size, INNER,
                   "the activation and its product", **sizes)  # fmt: skip
    if experts.is_clamped and not at.is_fused:
        yield at.keep("clamped gate, its sigmoid, their product, and up", f"4 * {inner}", size,
                       INNER, "products", **sizes)  # fmt: skip
    elif experts.is_gated and not at.is_fused:
        yield at.keep("activated gate", inner, size, INNER, "its product", **sizes)
    if _is_trained(at, "experts out"):
        yield at.keep("input of the last projection", inner, _operand(at), INNER,
                       "its weights' gradient", **sizes)  # fmt: skip
    yield at.keep(
        "weights of rows", ROUTED, FLOAT32_BYTES, Region.STREAM, "product with rows", **sizes
    )
    if not at.is_fused and not is_all:
        yield at.keep(
            "rows from experts", rows, size, Region.STREAM, "times their weights", **sizes
        )
        yield at.keep(
            "order of rows", f"3 * {ROUTED}", INT64_BYTES, Region.STREAM, "there and back", **sizes
        )
        yield at.keep("ends of groups", "experts", FLOAT32_BYTES, Region.WHOLE, "products",
                       experts=experts.experts)  # fmt: skip


def _is_trained(at: Setting, name: str) -> bool:
    """The matrix, or adapters that are added to it."""
    return at.adapter is None or name in at.adapter.targets


def _merged_saved(at: Setting, name: str, *, rank_parts: int = 1) -> Iterator[Saved]:
    """Experts with their adapters added, and those cast for it."""
    if at.adapter is None or name not in at.adapter.targets:
        return
    experts, out, given = at.shapes[name]
    sizes = {"experts": experts, "out": out, "given": given}
    yield at.keep(f"{name} with their adapters", "experts * out * given", at.stream_bytes,
                   Region.INNER, "gradient of their input", **sizes)  # fmt: skip
    if at.adapter.itemsize_bytes != at.recipe.weight_bytes:
        yield at.keep(
            f"adapters of {name}, cast", "experts * rank * (out + given)", at.recipe.weight_bytes,
            Region.INNER, "their gradients", rank=at.adapter.rank * rank_parts, **sizes,
        )  # fmt: skip


def _operand(at: Setting) -> int:
    return at.stream_bytes if at.is_mixed_eagerly else at.operand_bytes
