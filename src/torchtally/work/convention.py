"""The conventions by which FLOP counts differ. Every report names the one it used."""

from enum import StrEnum

from torchtally.trace import Call
from torchtally.work import Cost, Kind


class Convention(StrEnum):
    """How much of a causal attention's square is counted.

    FULL counts every query with every key, masked or not: 12 * L * d * S FLOPs per token and
    training step (PaLM, arXiv 2204.02311, appendix B; nanoGPT; torchtitan). CAUSAL counts the
    half that the mask leaves: 6 * L * d * S (FlashAttention-2, arXiv 2307.08691, section 4.1;
    Megatron-LM; MaxText).
    """

    FULL = "full"
    CAUSAL = "causal"

    @property
    def description(self) -> str:
        if self is Convention.FULL:
            return "attention counted in full"
        return "causal attention counted by half"


def apply_convention(cost: Cost, call: Call, kind: Kind, convention: Convention) -> Cost:
    """The cost of a call under a convention: CAUSAL halves the FLOPs of an `is_causal=True`.

    Only the literal is looked at: a causal mask passed as a tensor is not recognised.
    """
    is_halved = convention is Convention.CAUSAL and kind is Kind.ATTENTION
    if not (is_halved and call.literal("is_causal") is True):
        return cost
    return Cost(cost.flops // 2, cost.bytes_read, cost.bytes_written, cost.network_bytes)
