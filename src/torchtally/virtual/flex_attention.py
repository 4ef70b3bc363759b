"""`flex_attention` on the virtual GPU: one fused kernel in compiled code, plain products elsewhere.

B, H: batch and query heads.  S, T: queries and keys.

PyTorch's own way leads through the compiler: of `torch.compile(flex_attention)` inductor makes a
Triton kernel, which skips the blocks that the block mask leaves out, and without it the compiler's
eager backend writes out all scores. Here the call of the higher-order operator itself is replaced,
so that neither needs a compiler. The kernel is an operator of this package, of which the trace
knows what its mask attends to; the products are torch's own composition, forward and backward.

Tensors that a `score_mod` refers to are arguments to the compiler, which finds them in its graph,
and may get gradients. Here they are found by running it once on scalars.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.library import Library
from torch.overrides import TorchFunctionMode

from torchtally import torch_private as private
from torchtally.virtual import block_masks
from torchtally.virtual.compiling import is_compiled
from torchtally.virtual.depth import as_meta
from torchtally.virtual.device_memory import DeviceMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.invocation import META
from torchtally.virtual.kernels import in_autocast_dtype
from torchtally.virtual.shapes import shape_of
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import virtual_of

Mod = Callable[..., Tensor]

UNKNOWN_MASK = (
    "flex_attention with a block mask of unknown values is counted with every query attending to "
    "every key"
)
NO_BACKWARD = (
    "BlockMask q_indices is None. Backward pass requires q_indices to be computed. Please create "
    "the BlockMask with compute_q_blocks=True"
)
SMALL_HEADS = (
    "NYI: embedding dimension of the query, key, and value must be at least 16 but got E={} and "
    "Ev={}"
)
"""torch's own words (torch/_higher_order_ops/flex_attention.py, torch/_inductor/kernel/flex)."""
SMALLEST_HEAD = 16
"""Of a Triton product (`tl.dot`)."""

LIBRARY = Library("torchtally", "DEF")
"""Its operators are known as long as this object lives."""
LIBRARY.define(
    "flex_attention(Tensor query, Tensor key, Tensor value, Tensor[] blocks, Tensor[] captured, "
    "int[] attended, int? computed) -> (Tensor, Tensor, Tensor)"
)
LIBRARY.define(
    "flex_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
    "Tensor logsumexp, Tensor[] blocks, Tensor[] captured, int[] attended, int? computed) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)
FORWARD = torch.ops.torchtally.flex_attention.default
BACKWARD = torch.ops.torchtally.flex_attention_backward.default


@shape_of(FORWARD)
def fused_forward(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """(the result, its rows' log-sum-exp, their maxima), as inductor's lowering allocates them."""
    shape = (*query.shape[:-1], value.shape[-1])
    rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
    return dense_like(query, shape), rows, torch.empty_like(rows)


@shape_of(BACKWARD)
def fused_backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, rows: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(rows' sums of grad * out, gradients of query, key and value)."""
    return torch.empty_like(rows), *(dense_like(t, t.shape) for t in (query, key, value))


def dense_like(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """An empty tensor of a shape, whose dimensions lie in storage in the order of the other's."""
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride()[dim], dim))
    laid_out = tensor.new_empty([shape[dim] for dim in order])
    return laid_out.permute([order.index(dim) for dim in range(tensor.dim())])


@dataclass(frozen=True, slots=True)
class Attention:
    """What one call has besides the tensors that may get gradients."""

    score_mod: Mod
    block_mask: tuple[Any, ...]
    scale: float
    options: dict[str, Any]
    captured: tuple[Tensor, ...]
    """What `score_mod` refers to."""
    trained: tuple[Tensor, ...]
    """Those that get gradients."""
    counts: block_masks.Counts

    def score(self, *arguments: Tensor) -> Tensor:
        """`score_mod` with the tensors that get gradients as arguments, behind its own five."""
        with Exchanged(dict(zip(map(id, self.trained), arguments[5:], strict=True))):
            return self.score_mod(*arguments[:5])

    def gradients_of_score(self, *arguments: Tensor) -> list[Tensor | None]:
        """Gradients as of torch's joint graph: of score, batch, head, query, key, and what gets
        gradients.
        """
        score, indices, grad = arguments[0], arguments[1:5], arguments[5]
        pull = torch.func.vjp(
            lambda score, *trained: self.score(score, *indices, *trained), score, *arguments[6:]
        )[1]
        of_score, *of_trained = pull(grad)
        return [of_score, None, None, None, None, *of_trained]


class Exchanged(TorchFunctionMode):
    """Gives torch other tensors in place of some, which are named by their `id`."""

    def __init__(self, others: dict[int, Tensor]) -> None:
        super().__init__()
        self.others = others

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = private.tree_map_only(
            Tensor, lambda tensor: self.others.get(id(tensor), tensor), (args, kwargs or {})
        )
        return func(*args, **kwargs)


class Watching(TorchFunctionMode):
    """Collects the tensors that functions of torch are given and did not make."""

    def __init__(self, results: Sequence[Tensor]) -> None:
        super().__init__()
        self.results = {id(tensor): tensor for tensor in results}
        self.given: dict[int, Tensor] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for leaf in private.tree_leaves((args, kwargs)):
            if isinstance(leaf, Tensor) and id(leaf) not in self.results:
                self.given[id(leaf)] = leaf
        result = func(*args, **(kwargs or {}))
        for leaf in private.tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.results[id(leaf)] = leaf
        return result


def captures_of(score_mod: Mod, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The tensors that a `score_mod` refers to."""
    with private.without_dispatch_modes(), as_meta(), torch.no_grad():
        score = torch.empty((), dtype=dtype, device=META)
        indices = [torch.empty((), dtype=torch.int32, device=META) for _ in range(4)]
        watching = Watching([score, *indices])
        with watching, private.indexing_by_tensors():
            score_mod(score, *indices)
    return tuple(watching.given.values())


class InCompiledCode:
    """True where the script has compiled what runs now: torch has no warning for it then."""

    def __bool__(self) -> bool:
        return is_compiled()


class FlexAttention:
    def __init__(self, mode: VirtualDispatch) -> None:
        self.mode = mode

    def stand_ins(self) -> list[StandIn]:
        return [
            StandIn(private.FlexAttention, "__call__", self.attend),
            StandIn(*private.RUNS_UNCOMPILED, InCompiledCode()),
        ]

    def attend(
        self, operator: Any, query: Tensor, key: Tensor, value: Tensor, score_mod: Mod,
        block_mask: tuple[Any, ...], scale: float, kernel_options: dict[str, Any], *rest: Any,
    ) -> Any:  # fmt: skip
        """(result, log-sum-exp, maxima), the last two to the base of two."""
        query, key, value = map(in_autocast_dtype, (query, key, value))
        captured = captures_of(score_mod, query.dtype)
        trained = tuple(tensor for tensor in captured if tensor.requires_grad)
        is_trained = torch.is_grad_enabled() and (
            bool(trained) or any(tensor.requires_grad for tensor in (query, key, value))
        )
        if is_trained and block_mask[private.Q_INDICES] is None:
            raise RuntimeError(NO_BACKWARD)
        virtual = virtual_of(query)
        is_on_gpu = virtual is not None and isinstance(virtual.home, DeviceMemory)
        make = FusedAttention if is_on_gpu and is_compiled() else PlainAttention
        counts = block_masks.NOTHING_KNOWN
        if make is FusedAttention:
            heads = (query.shape[-1], value.shape[-1])
            if min(heads) < SMALLEST_HEAD:
                raise NotImplementedError(SMALL_HEADS.format(*heads))
            counts = block_masks.counts_of(block_mask, (*query.shape[:-1], key.shape[-2]))
            if not counts.attended:
                self.mode.observer.note(UNKNOWN_MASK)
        attention = Attention(
            score_mod, block_mask, scale, kernel_options, captured, trained, counts
        )
        with private.exclude_autocast_key():
            return make.apply(attention, query, key, value, *trained)  # type: ignore[no-untyped-call]


def blocks_of(block_mask: tuple[Any, ...], *, is_backward: bool) -> list[Tensor]:
    """The tensors of a block mask that a kernel reads."""
    places = private.BACKWARD_BLOCKS if is_backward else private.FORWARD_BLOCKS
    return [tensor for tensor in block_mask[places] if tensor is not None]


class FusedAttention(torch.autograd.Function):
    """The kernels that inductor makes, each one operator."""

    @staticmethod
    def forward(
        ctx: Any, attention: Attention, query: Tensor, key: Tensor, value: Tensor, *trained: Tensor
    ) -> Any:
        blocks = blocks_of(attention.block_mask, is_backward=False)
        counts = attention.counts
        out, rows, maxima = FORWARD(
            query, key, value, blocks, list(attention.captured), counts.attended, counts.computed
        )
        ctx.mark_non_differentiable(maxima)
        ctx.set_materialize_grads(False)
        ctx.attention = attention
        ctx.save_for_backward(query, key, value, out, rows, *trained)
        return out, rows, maxima

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_rows: Any, grad_maxima: Any) -> Any:
        attention: Attention = ctx.attention
        query, key, value, out, rows, *trained = ctx.saved_tensors
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        blocks = blocks_of(attention.block_mask, is_backward=True)
        counts = attention.counts
        # Gradients of what `score_mod` refers to are added to by the kernel, from zeros on.
        of_trained = [torch.zeros_like(tensor) for tensor in trained]
        _, *grads = BACKWARD(
            grad_out, query, key, value, out, rows, blocks, list(attention.captured),
            counts.attended, counts.computed,
        )  # fmt: skip
        return None, *grads, *of_trained


class PlainAttention(torch.autograd.Function):
    """torch's own composition, which writes all scores (`sdpa_dense`, and its backward)."""

    @staticmethod
    def forward(
        ctx: Any, attention: Attention, query: Tensor, key: Tensor, value: Tensor, *trained: Tensor
    ) -> Any:
        out, rows, maxima = private.dense_flex_attention(
            query, key, value, attention.score_mod, attention.block_mask, attention.scale,
            attention.options,
        )  # fmt: skip
        ctx.mark_non_differentiable(maxima)
        ctx.set_materialize_grads(False)
        ctx.attention = attention
        ctx.save_for_backward(query, key, value, out, rows, *trained)
        return out, rows, maxima

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_rows: Any, grad_maxima: Any) -> Any:
        attention: Attention = ctx.attention
        query, key, value, out, rows, *trained = ctx.saved_tensors
        *grads, of_trained = private.dense_flex_attention_backward(
            query, key, value, out, rows, grad_out, grad_rows, attention.score,
            attention.gradients_of_score, attention.block_mask, attention.scale,
            attention.options, tuple(trained), (),
        )  # fmt: skip
        return None, *grads, *of_trained
