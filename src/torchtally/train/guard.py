"""What prevents an update: NaN, inf, loss spikes, float16's overflows. None is taken silently."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.checkpoints.ranks import Ranks
from torchtally.checkpoints.shards import local_part
from torchtally.train.outcome import NonFiniteError, Outcome, SpikeError
from torchtally.train.spikes import SpikeDetector

OnNonfinite = Literal["stop", "skip", "take"]
""""take" updates anyway: for rehearsals, whose numbers mean nothing."""

LEAST_LOSS_SCALE = 1.0
"""Below it float16 underflows even more: torch.amp.GradScaler's documentation."""


@dataclass(frozen=True, slots=True)
class StepPasses:
    """The numbers of a step on the host, after its backward passes."""

    size: int
    """Rows of a micro-batch."""
    loss: float
    grad_norm: float
    """Before clipping."""
    loss_scale: float
    micro_losses: Float[Tensor, " micro_batches"]
    """This rank's part of the loss per micro-batch, on the device."""

    @property
    def is_finite(self) -> bool:
        return isfinite(self.loss) and isfinite(self.grad_norm)


@dataclass(slots=True)
class UpdateGuard:
    """Decides by a step's numbers whether it updates.

    On a NaN or inf loss or gradient norm, "stop" raises NonFiniteError and "skip" skips the update,
    up to `most_skipped` times in a row; spikes likewise, as their config says. Weights and
    optimizer state are then unchanged; buffers written by the forward pass are not restored.
    """

    model: nn.Module
    scaler: torch.amp.GradScaler | None
    on_nonfinite: OnNonfinite
    most_skipped: int
    spikes: SpikeDetector | None
    ranks: Ranks
    skipped_in_a_row: int = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the loss scale."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def get_scale(self) -> float:
        """The loss scale; 1 without loss scaling."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def judge(self, passes: StepPasses) -> tuple[bool, Outcome]:
        """Whether the loss is a spike, and what becomes of the update."""
        spikes = self.spikes
        is_spike = spikes is not None and passes.is_finite and spikes.sees_spike(passes.loss)
        if not passes.is_finite and self.on_nonfinite != "take":
            is_overflow = isfinite(passes.loss) and self._lower_scale(passes.loss_scale)
            return is_spike, Outcome.SCALE_LOWERED if is_overflow else Outcome.NONFINITE
        is_left_out = is_spike and spikes is not None and spikes.on_spike != "note"
        return is_spike, Outcome.SPIKE if is_left_out else Outcome.UPDATED

    def count_update(self) -> None:
        """Counts after the optimizer's step, not the scaler's: that would synchronize to look for
        inf.
        """
        self.skipped_in_a_row = 0
        if self.scaler is not None:
            self.scaler.update()

    def count_skip(
        self, outcome: Outcome, passes: StepPasses, step: int, batch: tuple[Tensor, Tensor]
    ) -> None:
        """Raise if such a step must not be skipped, or too many were in a row."""
        if outcome is Outcome.SCALE_LOWERED:
            return
        if self.scaler is not None:  # reset its stage, keep its scale
            self.scaler.update(self.scaler.get_scale())
        self.skipped_in_a_row += 1
        is_over = self.skipped_in_a_row > self.most_skipped
        if outcome is Outcome.SPIKE:
            assert self.spikes is not None
            if is_over or self.spikes.on_spike == "stop":
                what = (
                    f"the loss spiked to {passes.loss:.6g}, with a gradient norm of "
                    f"{passes.grad_norm:.6g}."
                )
                raise SpikeError(self._text(what, step), step=step, batch=batch)
        elif is_over or self.on_nonfinite == "stop":
            what = _nonfinite_text(passes, len(batch[0]), self.model, self.ranks)
            raise NonFiniteError(self._text(what, step), step=step, batch=batch)

    def renew_scaler(self, fresh: torch.amp.GradScaler | None) -> None:
        """A new scaler with the same scale.

        GradScaler keeps a stage per optimizer and refuses a second unscale_ before update()
        (torch/amp/grad_scaler.py, _per_optimizer_states); a new one starts without it.
        """
        if self.scaler is not None and fresh is not None:
            fresh.load_state_dict(self.scaler.state_dict())
            self.scaler = fresh

    def state_dict(self) -> dict[str, Any]:
        """State as JSON data."""
        return {
            "skipped_in_a_row": self.skipped_in_a_row,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "spikes": None if self.spikes is None else self.spikes.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.skipped_in_a_row = state_dict["skipped_in_a_row"]
        if self.scaler is not None and state_dict["scaler"] is not None:
            self.scaler.load_state_dict(state_dict["scaler"])
        if self.spikes is not None and state_dict["spikes"] is not None:
            self.spikes.load_state_dict(state_dict["spikes"])

    def _lower_scale(self, scale: float) -> bool:
        """Lower the loss scale after an overflow; False where that cannot help."""
        if self.scaler is None or scale <= LEAST_LOSS_SCALE:
            return False
        self.scaler.update()
        lowered = self.scaler.get_scale()
        if lowered < LEAST_LOSS_SCALE:
            self.scaler.update(LEAST_LOSS_SCALE)
        return lowered < scale

    def _text(self, what: str, step: int) -> str:
        skipped = self.skipped_in_a_row - 1
        before = f" after {skipped} skipped steps in a row" if skipped else ""
        return (
            f"Step {step}{before}: {what} Weights and optimizer state are unchanged. Lower the "
            "learning rate or clip_norm, inspect the batch, or skip such steps (on_nonfinite, "
            "on_spike)."
        )


def _nonfinite_text(passes: StepPasses, rows: int, model: nn.Module, ranks: Ranks) -> str:
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
            first, end = part * passes.size, min((part + 1) * passes.size, rows)
            whose = "" if ranks.size == 1 else f" of rank {rank}"
            return f"{text}, first in rows {first} to {end - 1} of {rows}{whose}."
    return f"{text}, at a loss scale of {passes.loss_scale:g}."


def _first(claims: Iterable[bool]) -> int:
    """The index of the first true claim; -1 for none."""
    return next((at for at, claim in enumerate(claims) if claim), -1)
