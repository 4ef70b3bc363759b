"""What communication hides behind which work: assumptions, each with a name and a reason."""

from dataclasses import dataclass

from torchtally.plan.quantity import Quantity, derived, of
from torchtally.units import Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Of the work that goes on meanwhile, the share behind which communication can hide.

    0: none, they take turns. 1: all, and only what is longer than the work shows.
    """

    tensor: float = 0.0
    """The next product needs the sum: Megatron-LM hides nothing by default (it can split products,
    `--tp-comm-overlap`, where Transformer Engine has the kernels)."""
    context: float = 1.0
    """The next block of keys travels while attention works on this one: Liu et al. 2023, arXiv
    2310.01889, section 3."""
    expert: float = 0.0
    """Experts wait for their tokens. DeepSeek-V3 hides it behind another micro-batch (DualPipe)."""
    pipeline: float = 1.0
    """A stage sends while it works on the next micro-batch. The first of them to arrive, and the
    last to come back, have nothing to hide behind."""
    data: float = 1.0
    """Gradients of one layer travel while the layer before is worked on, and so do parameters that
    are shared (PyTorch FSDP, arXiv 2304.11277, section 3.3). One layer's always shows."""

    def assumptions(self) -> tuple[str, ...]:
        """One line for each kind of parallelism."""
        return (
            f"tensor-parallel sums hide behind {self.tensor:.0%} of a layer's work",
            f"keys and values going round hide behind {self.context:.0%} of attention",
            f"routed tokens hide behind {self.expert:.0%} of a layer's work",
            f"sends between stages hide by {self.pipeline:.0%}, but those that fill and drain",
            f"gradients and gathered parameters hide behind {self.data:.0%} of a micro-batch's "
            "work on the stage, but one layer's",
            "the host keeps ahead of the device; all chips are equally fast",
        )


def exposed(name: str, sent_s: Quantity, work_s: Quantity, share: float) -> Quantity:
    """Seconds of communication that show beside so much work."""
    if not sent_s.value or not share:
        return sent_s.named(name)
    return derived(
        name,
        Unit.SECONDS,
        "max(0, sent_s - share * work_s)",
        sent_s=sent_s,
        share=of(share, Unit.FRACTION),
        work_s=work_s,
    )


def exposed_by_layers(
    name: str, sent_s: Quantity, work_s: Quantity, share: float, layers: Quantity
) -> Quantity:
    """The same where one layer's part cannot hide: the first or the last."""
    if not sent_s.value or not share:
        return sent_s.named(name)
    return derived(
        name,
        Unit.SECONDS,
        "max(sent_s / layers, sent_s - share * work_s)",
        sent_s=sent_s,
        share=of(share, Unit.FRACTION),
        work_s=work_s,
        layers=layers,
    )
