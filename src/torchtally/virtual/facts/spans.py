"""Masks too large for values whose rows are known: ones side by side, as of a window or a chunk.

N: masks, of several sequences.  S: rows, queries.  T: columns, keys.

Such masks come of comparing positions: those of the keys, which rise along a row, with those of the
queries, one for each row. So a row's ones begin and end where the query's position falls among the
keys'.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from torchtally.virtual import values
from torchtally.virtual.storage import virtual_of


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Spans of ones: the column where each row's begin, and the one behind their end; real, (N,
    S).
    """

    first: Tensor
    end: Tensor
    columns: int

    @property
    def counts(self) -> Tensor:
        """Ones of each row, (N, S)."""
        return (self.end - self.first).clamp(min=0)

    def __and__(self, other: "Spans") -> "Spans":
        first = torch.maximum(self.first, other.first)
        return Spans(first, torch.minimum(self.end, other.end), self.columns)


def spans_of(tensor: Tensor) -> Spans | None:
    """Spans of a mask with nothing but whole rows in their order; None where they are unknown."""
    virtual = virtual_of(tensor)
    if virtual is None or virtual.value is not None:
        return spans_of_rows(tensor)
    spans = None if virtual.facts is None else virtual.facts.spans
    if spans is None or tensor.dim() < 2 or tensor.storage_offset():
        return None
    rows, columns = tensor.shape[-2:]
    if (rows, columns) != (spans.first.shape[-1], spans.columns):
        return None
    # Masks in their order, or one for all.
    sizes = [size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    is_ordered = tensor.stride()[-2:] == (columns, 1)
    is_whole = prod(sizes) * tensor.element_size() == virtual.requested_bytes
    return spans if is_ordered and is_whole else None


def spans_of_rows(tensor: Tensor) -> Spans | None:
    """Spans of a real mask of one row for all queries, as of padding."""
    real = values.real_of(tensor)
    if real is None or real.dtype is not torch.bool or not real.numel():
        return None
    if real.dim() > 1 and real.shape[-2] > 1:
        return None
    columns = real.shape[-1] if real.dim() else 1
    rows = real.reshape(-1, columns).to(torch.uint8)
    first, end = rows.argmax(-1, keepdim=True), columns - rows.flip(-1).argmax(-1, keepdim=True)
    counts = rows.sum(-1, keepdim=True)
    if not torch.equal(torch.where(counts > 0, end - first, 0), counts):
        return None
    return Spans(first, torch.where(counts > 0, end, first), columns)


FLIPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq"}


def compare_spans(name: str, one: Tensor, other: Tensor) -> Spans | None:
    """Spans where keys' positions, one for each column, are compared with queries', one for each
    row, or reversed.
    """
    if name not in FLIPPED or one.dim() < 2 or other.dim() < 2:
        return None
    if is_column(one) and not is_column(other):
        return compare_spans(FLIPPED[name], other, one)
    keys, queries = values.real_of(one), values.real_of(other)
    if keys is None or queries is None or keys.shape[-2] != 1 or not is_column(queries):
        return None
    keys = keys.reshape(-1, keys.shape[-1]).contiguous()
    queries = queries.reshape(-1, queries.shape[-2]).contiguous()
    masks, columns = max(len(keys), len(queries)), keys.shape[-1]
    if min(len(keys), len(queries)) not in (1, masks) or bool((keys.diff() < 0).any()):
        return None
    keys, queries = (each.expand(masks, -1).contiguous() for each in (keys, queries))
    below, up_to = (torch.searchsorted(keys, queries, right=right) for right in (False, True))
    nothing, all_ = torch.zeros_like(below), torch.full_like(below, columns)
    first, end = {
        "le": (nothing, up_to),
        "lt": (nothing, below),
        "ge": (below, all_),
        "gt": (up_to, all_),
        "eq": (below, up_to),
    }[name]
    return Spans(first, end, columns)


def is_column(tensor: Tensor) -> bool:
    return tensor.shape[-1] == 1 and tensor.shape[-2] > 1


def both(one: Tensor, other: Tensor) -> Spans | None:
    """Spans at which both are one. A tensor of one element that is one changes nothing."""
    spans = [spans_of(tensor) for tensor in (one, other)]
    for opposite, tensor in zip(reversed(spans), (one, other), strict=True):
        if opposite is not None and tensor.numel() == 1 and is_one(tensor):
            return opposite
    if spans[0] is None or spans[1] is None or spans[0].columns != spans[1].columns:
        return None
    return spans[0] & spans[1]


def is_one(tensor: Tensor) -> bool:
    real = values.real_of(tensor)
    return real is not None and bool(real.all())


def spans_of_triangle(name: str, rows: int, columns: int, diagonal: int) -> Spans:
    """`tril` or `triu` of ones."""
    edge = torch.arange(rows)[None] + diagonal
    nothing, all_ = torch.zeros_like(edge), torch.full_like(edge, columns)
    if name == "tril":
        return Spans(nothing, (edge + 1).clamp(0, columns), columns)
    return Spans(edge.clamp(0, columns), all_, columns)
