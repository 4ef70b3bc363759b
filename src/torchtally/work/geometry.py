"""Who attends to whom: one description, from which FLOPs, time and memory of attention follow.

S: queries.  T: keys.  W: window.  C: chunk.

A geometry is a band in the square of S * T points, (query, key): a query attends to so many keys
before its own and so many after it. Three areas of it are of interest:

- *full*, what conventions call attention in full: every query with as many keys as any of them
  attends to. That is the whole square for causal attention (PaLM, arXiv 2204.02311, appendix B),
  W keys a query for a sliding window and C for a chunk (nanochat's `estimate_flops` counts so).
- *attended*, what the mask leaves, as an area: half a square for causal attention, without the half
  of the diagonal that lies above the line (FlashAttention-2, arXiv 2307.08691, section 4.1;
  Megatron-LM; MaxText).
- *computed*, what a kernel does that skips the blocks that are masked altogether: the attended area
  and half a block beyond each edge of the band. A kernel that is given a mask as a tensor reads it
  point by point and skips nothing (cuDNN's bias, and memory-efficient attention's in
  kernel_forward.h): its geometry is the whole square, whatever the mask says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The geometry of one head in one sequence."""

    queries: int
    keys: int
    before: int | None = None
    """Keys before its own that a query attends to; None: all."""
    after: int | None = None
    """Keys after its own; None: all. 0 is causal."""
    chunk: int | None = None
    """A sequence is cut into chunks of so many tokens, and none attends to another one."""
    is_end_aligned: bool = False
    """The last query's own key is the last one, as in flash-attention; else the first query's the
    first, as PyTorch's `is_causal` says."""

    @property
    def full_pairs(self) -> int:
        """Every query with as many keys as any query attends to."""
        return self.queries * self.most_keys

    @property
    def most_keys(self) -> int:
        """What a query attends to at most."""
        most = self.keys if self.chunk is None else min(self.keys, self.chunk)
        if self.before is None or self.after is None:
            return most
        return min(most, self.before + 1 + self.after)

    @property
    def attended_share(self) -> Fraction:
        """Share of the full pairs that the mask leaves."""
        full = self.full_pairs
        twice = sum(times * part._twice_attended for part, times in self._parts)
        return Fraction(twice, 2 * full) if full else Fraction(1)

    def computed_share(self, block: int) -> float:
        """Share of all S * T points in blocks of so many keys that are not masked altogether."""
        square = self.queries * self.keys
        computed = sum(
            times * min(part.queries * part.keys, (part._twice_attended + part._edges * block) / 2)
            for part, times in self._parts
        )
        return computed / square if square else 1.0

    @property
    def _parts(self) -> Iterator[tuple["Geometry", int]]:
        """Sequences that do not attend to each other, and how often each: itself, or its chunks."""
        if self.chunk is None or self.chunk >= self.keys:
            yield replace(self, chunk=None), 1
            return
        whole, rest = divmod(self.keys, self.chunk)
        for size, times in ((self.chunk, whole), (rest, 1)):
            yield replace(self, queries=size, keys=size, chunk=None), times

    @property
    def _twice_attended(self) -> int:
        """Twice the area between the band's edges."""
        right = 2 * self.queries * self.keys if self.after is None else self._left_of(self.after)
        left = 0 if self.before is None else self._left_of(-self.before - 1)
        return right - left

    @property
    def _edges(self) -> int:
        """Queries at which an edge of the band lies within the keys: once for each edge."""
        shifts = (self.after, None if self.before is None else -self.before - 1)
        first = self._first_key
        return sum(
            max(0, min(self.queries, self.keys - first - shift) - max(0, -first - shift))
            for shift in shifts
            if shift is not None
        )

    def _left_of(self, shift: int) -> int:
        """Twice the area left of the line that lies so many keys beyond each query's own: the
        integral of clamp(query + shift, 0, T) over the queries.
        """
        start = self._first_key + shift

        def area(end: int) -> int:
            """Twice the integral of clamp(x, 0, T) from 0 to `end`."""
            inside = min(max(end, 0), self.keys)
            return inside * inside + 2 * self.keys * max(0, end - self.keys)

        return area(start + self.queries) - area(start)

    @property
    def _first_key(self) -> int:
        """The first query's own key."""
        return self.keys - self.queries if self.is_end_aligned else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One head in one sequence where a mask is no band but was counted: the average of all heads
    that the mask is for.
    """

    queries: int
    keys: int
    full_pairs: Fraction
    """Every query with as many keys as any query attends to."""
    attended_pairs: Fraction
    computed_pairs: Fraction

    @property
    def attended_share(self) -> Fraction:
        """Share of the full pairs that the mask leaves."""
        return self.attended_pairs / self.full_pairs if self.full_pairs else Fraction(1)

    def computed_share(self, block: int) -> float:
        """Share of all S * T points in the mask's own blocks that are not masked altogether."""
        square = self.queries * self.keys
        return float(self.computed_pairs / square) if square else 1.0


def causal(tokens: int, window: int | None = None, *, is_chunked: bool = False) -> Geometry:
    """Geometry of a decoder: every token attends to itself and what is before it, all or in a
    window of so many tokens, which slides or, chunked, does not.
    """
    if window is None or window >= tokens:
        return Geometry(queries=tokens, keys=tokens, after=0)
    if is_chunked:
        return Geometry(queries=tokens, keys=tokens, after=0, chunk=window)
    return Geometry(queries=tokens, keys=tokens, before=window - 1, after=0)
