"""What a `BlockMask` of `flex_attention` attends to: exact, from its function.

B, H: batch and heads of the mask, each 1 where all share it.  S, T: queries and keys.

The function is asked for every query and key, on the host, with the values of the tensors that it
refers to. A large mask is asked a part of its queries at a time.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torchtally import torch_private as private
from torchtally.virtual import values
from torchtally.virtual.storage import VirtualStorage, virtual_of

MOST_PAIRS = 1 << 28
"""Of queries and keys of a mask that its function is asked for: more would take seconds."""
PAIRS_AT_A_TIME = 1 << 22

NO_BLOCKS = 1 << 30
"""What torch takes for the block size of an attention without a block mask."""


class Counts(NamedTuple):
    """Pairs of a query and a key, of all heads of all sequences."""

    attended: list[int]
    """With every query taken to attend to as many keys as the one that attends to most, and those
    that the mask leaves. Empty where the mask's values are not known."""
    computed: int | None
    """In blocks that the kernel does not skip; None: all."""
    is_estimate: bool = False

    def times(self, number: int) -> "Counts":
        computed = None if self.computed is None else self.computed * number
        return Counts([pairs * number for pairs in self.attended], computed, self.is_estimate)


NOTHING_KNOWN = Counts([], None)


class WithValues(TorchFunctionMode):
    """Gives torch the values of virtual tensors in their place."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = private.tree_map_only(Tensor, value_of, (args, kwargs or {}))
        return func(*args, **kwargs)


def value_of(tensor: Tensor) -> Tensor:
    if virtual_of(tensor) is None:
        return tensor
    real = values.real_of(tensor)
    if real is None:
        raise values.UnknownValueError
    return real


class Blocks(NamedTuple):
    """The blocks of keys that a kernel reads for each block of queries, on the host."""

    numbers: Tensor
    """(B, H, blocks of queries): how many of the indices count."""
    indices: Tensor
    """(B, H, blocks of queries, blocks of keys)."""
    full_numbers: Tensor | None
    full_indices: Tensor | None
    """Of blocks in which every query attends to every key: the mask is not asked."""


def counts_of(block_mask: tuple[Any, ...], scores: tuple[int, ...]) -> Counts:
    """Counts of a block mask, as torch hands it on, and the (B, H, S, T) that it is used for."""
    numbers = block_mask[private.KV_NUM_BLOCKS]
    lists: list[Any] = [
        None if each is None else values.real_of(each)
        for each in block_mask[private.FORWARD_BLOCKS]
    ]
    blocks = None if lists[0] is None or lists[1] is None else Blocks(*lists)
    mask = Mask(block_mask[private.MASK_MOD], block_mask[private.BLOCK_SIZES], numbers.shape[:2])
    return mask.counts(scores, blocks, virtual_of(numbers))


class Mask(NamedTuple):
    mask_mod: Callable[..., Tensor]
    block: tuple[int, int]
    """Queries and keys of a block."""
    heads: tuple[int, int]
    """Sequences and heads that have masks of their own; 1 where all share one."""

    def counts(
        self, scores: tuple[int, ...], blocks: Blocks | None, keeper: VirtualStorage | None
    ) -> Counts:
        """Counts as it is used for (B, H, S, T). `keeper` remembers them: a backward pass asks
        again.
        """
        B, H, S, T = scores
        if min(self.block) >= NO_BLOCKS:
            return Counts([prod(scores)] * 2, None)
        known = None if keeper is None else keeper.block_mask
        counts = self._count((*self.heads, S, T), blocks) if known is None else Counts(*known)
        if keeper is not None:
            keeper.block_mask = counts
        return counts if not counts.attended else counts.times(B * H // prod(self.heads))

    def _count(self, scores: tuple[int, ...], blocks: Blocks | None) -> Counts:
        try:
            with private.without_dispatch_modes():
                if blocks is not None:
                    return in_blocks(self.mask_mod, scores, self.block, blocks)
                return ask(self.mask_mod, scores, self.block)
        except (values.UnknownValueError, RuntimeError, NotImplementedError, IndexError, TypeError):
            return NOTHING_KNOWN


def ask(mask_mod: Callable[..., Tensor], scores: tuple[int, ...], block: tuple[int, int]) -> Counts:
    """The counts of a mask of its own (B, H, S, T), in blocks of so many queries and keys. Of more
    than `MOST_PAIRS` some blocks of queries are asked, evenly spaced, and stand for all.
    """
    B, H, S, _ = scores
    all_rows = -(-S // block[0])
    spacing = min(all_rows, -(-prod(scores) // MOST_PAIRS))
    rows = range(spacing // 2, all_rows, spacing)
    most = left = blocks = 0
    for attends in parts_of(mask_mod, scores, block[0], rows):
        of_queries = attends.sum(-1)
        most, left = max(most, int(of_queries.max())), left + int(of_queries.sum())
        blocks += int(blocks_with_any(attends, block).sum())
    left, blocks = left * all_rows // len(rows), blocks * all_rows // len(rows)
    full = B * H * S * most
    computed = min(prod(scores), blocks * prod(block))
    return Counts([full, min(full, left)], computed, is_estimate=len(rows) < all_rows)


def in_blocks(
    mask_mod: Callable[..., Tensor], scores: tuple[int, ...], block: tuple[int, int], blocks: Blocks
) -> Counts:
    """The counts of the blocks that a kernel reads: the mask is asked within those that are not
    full.
    """
    B, H, S, T = scores
    of_queries = torch.zeros(B, H, S, dtype=torch.int64)
    b, h, rows, columns = blocks_of(blocks.numbers, blocks.indices)
    at_a_time = max(1, PAIRS_AT_A_TIME // prod(block))
    for start in range(0, len(b), at_a_time):
        part = slice(start, start + at_a_time)
        queries = (rows[part, None] * block[0] + torch.arange(block[0])).unsqueeze(-1)
        keys = (columns[part, None] * block[1] + torch.arange(block[1])).unsqueeze(-2)
        with WithValues():
            attends = mask_mod(
                b[part, None, None],
                h[part, None, None],
                queries.clamp(max=S - 1),
                keys.clamp(max=T - 1),
            )
        attends = (attends & (queries < S) & (keys < T)).sum(-1)
        own = queries.squeeze(-1).clamp(max=S - 1)
        of_queries.index_put_((b[part, None], h[part, None], own), attends, accumulate=True)
    computed = len(b)
    if blocks.full_numbers is not None and blocks.full_indices is not None:
        b, h, rows, columns = blocks_of(blocks.full_numbers, blocks.full_indices)
        keys_of = (T - columns * block[1]).clamp(max=block[1])
        queries = rows[:, None] * block[0] + torch.arange(block[0])
        counted = keys_of[:, None] * (queries < S)
        of_queries.index_put_(
            (b[:, None], h[:, None], queries.clamp(max=S - 1)), counted, accumulate=True
        )
        computed += len(b)
    most, left = int(of_queries.max()), int(of_queries.sum())
    return Counts([B * H * S * most, left], min(prod(scores), computed * prod(block)))


def blocks_of(numbers: Tensor, indices: Tensor) -> tuple[Tensor, ...]:
    """(sequence, head, block of queries, block of keys) of each block in the lists."""
    is_listed = torch.arange(indices.shape[-1]) < numbers.unsqueeze(-1)
    b, h, rows, places = is_listed.nonzero(as_tuple=True)
    return b, h, rows, indices[b, h, rows, places].to(torch.int64)


def parts_of(
    mask_mod: Callable[..., Tensor], scores: tuple[int, ...], block: int, rows: range
) -> Iterator[Tensor]:
    """Whether queries attend to keys, some of these blocks of queries at a time."""
    B, H, S, T = scores
    at_a_time = max(1, PAIRS_AT_A_TIME // (B * H * T * block))
    b, h, keys = (torch.arange(n, device="cpu") for n in (B, H, T))
    for first in range(0, len(rows), at_a_time):
        queries = torch.cat(
            [
                torch.arange(row * block, min(S, (row + 1) * block), device="cpu")
                for row in rows[first : first + at_a_time]
            ]
        )
        with WithValues(), private.indexing_by_tensors():
            attends = private.over_indices(mask_mod)(b, h, queries, keys)
        yield attends.expand(B, H, len(queries), T)


def blocks_with_any(attends: Tensor, block: tuple[int, int]) -> Tensor:
    """Blocks of (B, H, S, T) in which some query attends to some key."""
    S, T = attends.shape[-2:]
    padded = torch.nn.functional.pad(attends, (0, -T % block[1], 0, -S % block[0]))
    tiles = padded.unflatten(-1, (-1, block[1])).unflatten(-3, (-1, block[0]))
    is_any: Tensor = tiles.any(-1).any(-2)
    return is_any
