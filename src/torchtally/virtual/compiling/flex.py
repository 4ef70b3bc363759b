"""`flex_attention` in a compiled graph: one kernel each way, of what its block mask leaves."""

from collections.abc import Callable
from typing import Any

from msgspec import structs
from torch import Tensor
from torch.fx import Node

from torchtally import torch_private as private
from torchtally.trace import Call, Literal, Part, TensorSpec
from torchtally.virtual import block_masks, values
from torchtally.virtual.block_masks import Counts
from torchtally.virtual.compiling.known import KnownValues
from torchtally.virtual.compiling.origins import operator_name
from torchtally.virtual.compiling.sizes import plain
from torchtally.virtual.description import spec
from torchtally.virtual.storage import virtual_of

FLEX = {"flex_attention": 4, "flex_attention_backward": 9}
"""Operators on functions, and the place of the block mask among their arguments."""
NUMBERS = "arg_KV_NUM_BLKS"
"""The kernel's argument that has the numbers of blocks: the storage that knows the mask."""
UNKNOWN_MASK = (
    "flex_attention with a block mask of unknown values is counted with every query attending to "
    "every key"
)
ESTIMATED_MASK = (
    "flex_attention with a large block mask is counted by a part of its queries, evenly spaced"
)


class FlexNode:
    """One attention of a graph."""

    def __init__(self, node: Node) -> None:
        self.name = operator_name(node.target)
        block_mask: Any = node.args[FLEX[self.name]]
        query, key, value = (plain(meta_of(each), {}) for each in node.args[:3])
        self.scores = (*query.shape[:-1], key.shape[-2])
        self._lists = tuple(block_mask[private.FORWARD_BLOCKS])
        numbers = plain(meta_of(block_mask[private.KV_NUM_BLOCKS]), {})
        self._heads = (numbers.shape[0], numbers.shape[1])
        self._block = tuple(block_mask[private.BLOCK_SIZES])
        self._buffers: tuple[Any, ...] = tuple(node.args[-1])  # type: ignore[arg-type]
        self._mask = getattr(node.graph.owning_module, str(block_mask[-1].target), None)
        places: dict[int, int] = {}
        inputs = zip(("query", "key", "value"), (query, key, value), strict=True)
        self._inputs = tuple(on_gpu(spec(tensor, name, places)) for name, tensor in inputs)

    def call(self, counts: Counts) -> Call:
        """Call of an operator of this package, which knows what its mask attends to."""
        literals: list[tuple[str, Literal]] = [("attended", tuple(counts.attended))]
        if counts.computed is not None:
            literals.append(("computed", counts.computed))
        name = f"torchtally.{self.name}"
        return Call(
            name=name, overload="", inputs=self._inputs, outputs=(), literals=tuple(literals)
        )

    def parts_with(self, parts: tuple[Part, ...], counts: Counts) -> tuple[Part, ...]:
        """The kernel's, with this attention's call as it is counted now."""
        own = self.call(counts)
        return tuple(
            structs.replace(
                part, calls=tuple(own if call.name == own.name else call for call in part.calls)
            )
            for part in parts
        )

    def counts_without_values(self) -> Counts:
        """Counts as far as the mask refers to no tensor."""
        return self._with(None).counts(self.scores, None, None)

    def counts(self, known: KnownValues, numbers: Tensor | None) -> Counts:
        """Counts by the values that are known in this run; by those of the run that made the mask,
        whose numbers of blocks a backward pass is handed.
        """
        buffers, lists = known.all_of(self._buffers), [known.value(each) for each in self._lists]
        blocks = None
        if buffers is not None and lists[0] is not None and lists[1] is not None:
            blocks = block_masks.Blocks(*lists)
        keeper = None if numbers is None else virtual_of(numbers)
        return self._with(buffers).counts(self.scores, blocks, keeper)

    def _with(self, buffers: Any) -> block_masks.Mask:
        """None: the tensors that the mask refers to are not known."""
        buffers = buffers if self._buffers else ()
        return block_masks.Mask(self._mask_function(buffers), self._block, self._heads)

    def _mask_function(self, buffers: Any) -> Callable[..., Tensor]:
        """A mask as the graph has it, as a function of four indices."""

        def ask(*indices: Any) -> Any:
            if self._mask is None or buffers is None:
                raise values.UnknownValueError
            answer = self._mask(*indices, *buffers)
            return answer[0] if isinstance(answer, (tuple, list)) else answer

        return ask


def meta_of(node: Any) -> Any:
    return node.meta["val"]


def on_gpu(spec: TensorSpec) -> TensorSpec:
    """Spec of a tensor that the compiler traces with, which is in no memory."""
    return structs.replace(spec, device="cuda:0")
