"""xformers.ops.fmha.attn_bias: who attends to whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor


class AttentionBias:
    """What is added to the scores."""


class LowerTriangularMask(AttentionBias):
    """Causal."""


@dataclass
class SequenceLengths:
    lengths: tuple[int, ...]

    @property
    def max_seqlen(self) -> int:
        return max(self.lengths)

    def offsets_on(self, device: Any) -> Tensor:
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=device)


@dataclass
class BlockDiagonalMask(AttentionBias):
    """Sequences that lie end to end, each of which attends to itself."""

    q_seqinfo: SequenceLengths
    k_seqinfo: SequenceLengths

    @classmethod
    def from_seqlens(
        cls, q_seqlen: Sequence[int], kv_seqlen: Sequence[int] | None = None, **options: Any
    ) -> Self:
        lengths = SequenceLengths(tuple(q_seqlen))
        return cls(lengths, lengths if kv_seqlen is None else SequenceLengths(tuple(kv_seqlen)))

    def make_causal(self) -> "BlockDiagonalCausalMask":
        return BlockDiagonalCausalMask(self.q_seqinfo, self.k_seqinfo)


class BlockDiagonalCausalMask(BlockDiagonalMask):
    """Each causal by itself."""
