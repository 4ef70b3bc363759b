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
from torchtally.virtual.storage import virtual_of

MOST_PAIRS = 1 << 30
"""Of queries and keys of a mask, beyond which its function is not asked: it would take seconds."""
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

    def times(self, number: int) -> "Counts":
        computed = None if self.computed is None else self.computed * number
        return Counts([pairs * number for pairs in self.attended], computed)


NOTHING_KNOWN = Counts([], None)


class UnknownValueError(Exception):
    """A mask refers to a tensor that has no value."""


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
        raise UnknownValueError
    return real


def counts_of(block_mask: tuple[Any, ...], scores: tuple[int, ...]) -> Counts:
    """Of a block mask, as torch hands it on, and the (B, H, S, T) that it is used for."""
    B, H, S, T = scores
    block = block_mask[private.BLOCK_SIZES]
    if min(block) >= NO_BLOCKS:
        return Counts([prod(scores)] * 2, None)
    numbers = block_mask[private.KV_NUM_BLOCKS]
    virtual = virtual_of(numbers)
    own = numbers.shape[:2]
    known = None if virtual is None else virtual.block_mask
    counts = ask(block_mask[private.MASK_MOD], (*own, S, T), block) if known is None else known
    if virtual is not None:
        virtual.block_mask = counts
    return counts if counts is NOTHING_KNOWN else Counts(*counts).times(B * H // prod(own))


def ask(mask_mod: Callable[..., Tensor], scores: tuple[int, ...], block: tuple[int, int]) -> Counts:
    """The counts of a mask of its own (B, H, S, T), in blocks of so many queries and keys."""
    if prod(scores) > MOST_PAIRS:
        return NOTHING_KNOWN
    most = left = blocks = 0
    try:
        with private.without_dispatch_modes():
            for attends in parts_of(mask_mod, scores, block[0]):
                of_queries = attends.sum(-1)
                most, left = max(most, int(of_queries.max())), left + int(of_queries.sum())
                blocks += int(blocks_with_any(attends, block).sum())
    except (UnknownValueError, RuntimeError, NotImplementedError):
        return NOTHING_KNOWN
    return Counts([prod(scores[:-1]) * most, left], min(prod(scores), blocks * prod(block)))


def parts_of(
    mask_mod: Callable[..., Tensor], scores: tuple[int, ...], block: int
) -> Iterator[Tensor]:
    """Whether queries attend to keys, some blocks of queries at a time."""
    B, H, S, T = scores
    rows = max(1, PAIRS_AT_A_TIME // (B * H * T * block)) * block
    b, h, keys = (torch.arange(n, device="cpu") for n in (B, H, T))
    for start in range(0, S, rows):
        queries = torch.arange(start, min(S, start + rows), device="cpu")
        with WithValues(), private.indexing_by_tensors():
            attends = private.over_indices(mask_mod)(b, h, queries, keys)
        yield attends.expand(B, H, len(queries), T)


def blocks_with_any(attends: Tensor, block: tuple[int, int]) -> Tensor:
    """Of (B, H, S, T), those blocks in which some query attends to some key."""
    S, T = attends.shape[-2:]
    padded = torch.nn.functional.pad(attends, (0, -T % block[1], 0, -S % block[0]))
    tiles = padded.unflatten(-1, (-1, block[1])).unflatten(-3, (-1, block[0]))
    is_any: Tensor = tiles.any(-1).any(-2)
    return is_any
