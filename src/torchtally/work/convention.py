"""The conventions by which FLOP counts differ. Every report names the one it used."""

from enum import StrEnum
from fractions import Fraction

from torchtally.trace import Call
from torchtally.work import Cost, Kind
from torchtally.work.attention import attended_share, heads_of_call, pairs
from torchtally.work.rule import integers


class Convention(StrEnum):
    """How much of attention is counted of what a mask leaves out. `geometry.py` has both areas.

    FULL counts every query with as many keys as any query attends to, masked or not: with all of
    them 12 * L * d * S FLOPs per token and training step (PaLM, arXiv 2204.02311, appendix B;
    nanoGPT; torchtitan). CAUSAL counts what a causal mask leaves, half of them: 6 * L * d * S
    (FlashAttention-2, arXiv 2307.08691, section 4.1; Megatron-LM; MaxText).
    """

    FULL = "full"
    CAUSAL = "causal"

    @property
    def description(self) -> str:
        if self is Convention.FULL:
            return "attention counted in full"
        return "causal attention counted by half"


def needed_share(call: Call, convention: Convention) -> Fraction:
    """Share of the FLOPs of an attention operator in full that the model asks for.

    A kernel that is given a mask as a tensor computes all; what the mask leaves is known where its
    values are. In full, each query counts with as many keys as any query attends to by the mask.
    """
    is_full = convention is Convention.FULL
    in_full, left = integers(call, "attended") or (None, None)
    if in_full is None or left is None:
        return Fraction(1) if is_full else attended_share(call)
    return Fraction(in_full if is_full else left, pairs(heads_of_call(call) or {}))


def apply_convention(cost: Cost, call: Call, kind: Kind, convention: Convention) -> Cost:
    """The cost of a call under a convention: CAUSAL leaves out what an attention kernel masks by
    itself, half of the FLOPs of an `is_causal=True`. Given a mask as a tensor it computes all.
    """
    if convention is Convention.FULL or kind is not Kind.ATTENTION:
        return cost
    flops = int(cost.flops * attended_share(call))
    return Cost(flops, cost.bytes_read, cost.bytes_written, cost.network_bytes)
