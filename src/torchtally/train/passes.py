"""The numbers from the passes of a step, and error messages about them."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite

from jaxtyping import Float
from torch import Tensor, nn

from torchtally.train.ranks import Ranks
from torchtally.train.shards import local_part


@dataclass(frozen=True, slots=True)
class StepPasses:
    """The numbers of a step on the host, after its backward passes."""

    loss: float
    grad_norm: float
    loss_scale: float
    micro_losses: Float[Tensor, " micro_batches"]
    """This rank's part of the loss per micro-batch, on the device."""

    @property
    def is_finite(self) -> bool:
        return isfinite(self.loss) and isfinite(self.grad_norm)


def shortage_note(size: int, inputs: Tensor) -> str:
    return (
        f"Out of memory with {size} of {len(inputs)} rows of {tuple(inputs.shape[1:])} at a time, "
        "the smallest micro-batch allowed. Use a shorter sequence, activation recomputation, a "
        "precision with less state, or a smaller model."
    )


def shortage_together_note(size: int, inputs: Tensor, ranks: Ranks) -> str:
    return (
        f"Out of memory on rank {ranks.rank} with {size} of its {len(inputs)} rows of "
        f"{tuple(inputs.shape[1:])} at a time. The other {ranks.size - 1} ranks are in the same "
        "passes, so it is not retried with fewer: set micro_batch to "
        f"{max(size // 2, 1)}, or shard the weights (parallel.strategy fsdp)."
    )


def spike_text(passes: StepPasses) -> str:
    return f"the loss spiked to {passes.loss:.6g}, with a gradient norm of {passes.grad_norm:.6g}."


def nonfinite_text(passes: StepPasses, size: int, rows: int, model: nn.Module, ranks: Ranks) -> str:
    """What was NaN or inf first: weights, the loss of a micro-batch, or only gradients. The text is
    the same on all ranks.
    """
    weights = list(model.named_parameters())
    bad_weight = _first(
        not bool(local_part(parameter).isfinite().all()) for _, parameter in weights
    )
    bad_part = _first(not isfinite(number) for number in passes.micro_losses.tolist())
    text = f"the loss is {passes.loss}, the gradient norm {passes.grad_norm}"
    every = [(int(weight), int(part)) for weight, part in ranks.gather((bad_weight, bad_part))]
    for weight, _ in every:
        if weight >= 0:
            name = weights[weight][0]
            return f"{text}: weights were NaN or inf before the step, the first is {name!r}."
    for rank, (_, part) in enumerate(every):
        if part >= 0:
            first, end = part * size, min((part + 1) * size, rows)
            whose = "" if ranks.size == 1 else f" of rank {rank}"
            return f"{text}, first in rows {first} to {end - 1} of {rows}{whose}."
    return f"{text}, at a loss scale of {passes.loss_scale:g}."


def _first(claims: Iterable[bool]) -> int:
    """The index of the first true claim; -1 for none."""
    return next((at for at, claim in enumerate(claims) if claim), -1)
