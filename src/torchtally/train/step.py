"""One optimizer step on a batch, in as many micro-batches as needed; never a bad update silently.

    rows      sequences or samples of this rank's batch      micro-batch   rows in one pass

The host synchronizes with the device once per step, before the update, to read loss, gradient norm
and loss scale together: NaN and inf must not reach the weights. With several ranks these are the
numbers of all ranks, so that all make the same decision.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from typing import Any, Literal, get_args

import msgspec
import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.errors import UsageError, check_choice
from torchtally.train.models.loss import IGNORED
from torchtally.train.optimizers.clipping import clip_by_norm, global_norm, scale_to_norm
from torchtally.train.outcome import NonFiniteError, Outcome, SpikeError, StepResult
from torchtally.train.parallel import BY_ITSELF, Loss, Parallel
from torchtally.train.passes import (
    StepPasses,
    nonfinite_text,
    shortage_note,
    shortage_together_note,
    spike_text,
)
from torchtally.train.precision import Precision
from torchtally.train.ranks import Ranks
from torchtally.train.retry import MemoryShortageError, halve_until_it_fits
from torchtally.train.shards import local_part
from torchtally.train.spikes import SpikeDetector

StepBatch = Tensor | tuple[Tensor, Tensor]
"""Tokens, of which inputs and targets are made; or (inputs, targets). Rows come first."""
OnNonfinite = Literal["stop", "skip", "take"]
""""take" updates anyway: for rehearsals, whose numbers mean nothing."""

LEAST_LOSS_SCALE = 1.0
"""Below it float16 underflows even more: torch.amp.GradScaler's documentation."""


class Stepper:
    """Takes optimizer steps, one batch each.

    Rows go through the model `micro_batch` at a time; losses are weighted by their numbers of
    targets, so that loss and gradient equal those of the whole batch to rounding. The caller sets
    learning rates.

    On a NaN or inf loss or gradient norm, "stop" raises NonFiniteError and "skip" skips the update,
    up to `most_skipped` times in a row; spikes likewise, as their config says. Weights and
    optimizer state are then unchanged; buffers written by the forward pass are not restored.

    On torch.OutOfMemoryError in the passes, and no other error, the micro-batch is halved down to
    `least_micro_batch`, and the step repeated with the same random states. One in the update is
    raised, since a smaller micro-batch would not help.

    With several ranks, `parallel` combines their gradients. Loss, norm and outcome are those of all
    ranks, and bitwise equal on each. Out of memory raises immediately, since the other ranks are
    waiting in the same passes.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        precision: Precision,
        device: torch.device | str,
        micro_batch: int,
        clip_norm: float | None = None,
        on_nonfinite: OnNonfinite = "stop",
        most_skipped: int = 8,
        least_micro_batch: int = 1,
        spikes: SpikeDetector | None = None,
        parallel: Parallel = BY_ITSELF,
    ) -> None:
        _check(micro_batch, least_micro_batch, on_nonfinite, most_skipped)
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.precision = precision
        self.device = torch.device(device)
        self.scaler = precision.scaler(device)
        self.micro_batch = micro_batch
        """Stays lowered after out of memory."""
        self.least_micro_batch = least_micro_batch
        self.clip_norm = clip_norm
        self.on_nonfinite = on_nonfinite
        self.most_skipped = most_skipped
        self.spikes = spikes
        self.parallel = parallel
        self.skipped_in_a_row = 0

    def __call__(self, batch: StepBatch, *, step: int) -> StepResult:
        """Take one step. `step` is its number, for error messages."""
        inputs, targets = _inputs_and_targets(batch, self.device)
        began_with = min(self.micro_batch, len(inputs))
        size, passes = self._passes_that_fit(inputs, targets)
        is_spike = (
            self.spikes is not None and passes.is_finite and self.spikes.sees_spike(passes.loss)
        )
        outcome = self._outcome(passes, is_spike=is_spike)
        if outcome is Outcome.UPDATED:
            self._update()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self._count_skip(outcome, passes, size, step, (inputs, targets))
        return StepResult(
            loss=passes.loss,
            grad_norm=passes.grad_norm,
            outcome=outcome,
            is_spike=is_spike,
            micro_batch=size,
            micro_batches=len(passes.micro_losses),
            loss_scale=passes.loss_scale,
            lowered_from=began_with if size < began_with else None,
        )

    def state_dict(self) -> dict[str, Any]:
        """State besides model and optimizer, as JSON data."""
        return {
            "micro_batch": self.micro_batch,
            "skipped_in_a_row": self.skipped_in_a_row,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "spikes": None if self.spikes is None else msgspec.to_builtins(self.spikes.state),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of a stepper of the same precision.

        The smaller micro-batch of the two is used: this run may have been configured for less.
        """
        self.micro_batch = min(self.micro_batch, state_dict["micro_batch"])
        self.skipped_in_a_row = state_dict["skipped_in_a_row"]
        if self.scaler is not None and state_dict["scaler"] is not None:
            self.scaler.load_state_dict(state_dict["scaler"])
        if self.spikes is not None and state_dict["spikes"] is not None:
            self.spikes.state = type(self.spikes.state).from_dict(state_dict["spikes"])

    def _passes_that_fit(self, inputs: Tensor, targets: Tensor) -> tuple[int, StepPasses]:
        """The micro-batch that fits, and its passes; larger ones are not tried again."""
        began_with = min(self.micro_batch, len(inputs))
        if self.parallel.ranks.size > 1:
            return began_with, self._passes_together(inputs, targets, began_with)
        size, passes = halve_until_it_fits(
            lambda size: self._passes(inputs, targets, size),
            began_with,
            least=min(self.least_micro_batch, began_with),
            device=self.device,
            discard=self._discard,
            note=lambda size: shortage_note(size, inputs),
        )
        if size < began_with:
            self.micro_batch = size
        return size, passes

    def _discard(self) -> None:
        """Discard the attempt's gradients, and the scaler's record of having unscaled them."""
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler is not None:
            self.scaler = self._scaler_as_it_was(self.scaler)

    def _scaler_as_it_was(self, scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
        """A new scaler with the same scale.

        GradScaler keeps a stage per optimizer and refuses a second unscale_ before update()
        (torch/amp/grad_scaler.py, _per_optimizer_states); a new one starts without it.
        """
        fresh = self.precision.scaler(self.device)
        assert fresh is not None
        fresh.load_state_dict(scaler.state_dict())
        return fresh

    def _passes(self, inputs: Tensor, targets: Tensor, size: int) -> StepPasses:
        """Forward and backward passes of all micro-batches, clipping, and the one
        synchronization.
        """
        micro_losses = self._micro_losses(inputs, targets, size)
        numbers = self._numbers(micro_losses, self._clip())
        loss, grad_norm, loss_scale = numbers.tolist()
        return StepPasses(loss, grad_norm, loss_scale, micro_losses)

    def _passes_together(self, inputs: Tensor, targets: Tensor, size: int) -> StepPasses:
        """The same with several ranks. Clipping follows the synchronization, by the global norm."""
        try:
            micro_losses = self._micro_losses(inputs, targets, size)
        except torch.OutOfMemoryError as error:
            note = shortage_together_note(size, inputs, self.parallel.ranks)
            raise MemoryShortageError(f"{note}\n{error}") from error
        parameters = list(self.model.parameters())
        own_norm = global_norm(
            local_part(parameter.grad) for parameter in parameters if parameter.grad is not None
        )
        numbers = self._numbers(micro_losses, own_norm)
        every = self.parallel.ranks.gather_on_device(numbers).tolist()
        loss = 0.0
        for part, _, _ in every:
            loss += part
        # Replicas have equal gradients, but kernels may sum in different orders: use rank 0's norm.
        is_sharded = self.parallel.is_sharded
        grad_norm = sqrt(sum(norm * norm for _, norm, _ in every)) if is_sharded else every[0][1]
        if self.clip_norm is not None:
            scale_to_norm(parameters, grad_norm, self.clip_norm)
        return StepPasses(loss, grad_norm, every[0][2], micro_losses)

    def _micro_losses(
        self, inputs: Tensor, targets: Tensor, size: int
    ) -> Float[Tensor, " micro_batches"]:
        """Forward and backward passes of all micro-batches; each one's part of the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        parts = list(zip(inputs.split(size), targets.split(size), strict=True))
        losses = []
        for at, share in enumerate(_shares(targets, size, self.parallel.ranks)):
            with self.parallel.around_pass(at == len(parts) - 1):
                losses.append(self._pass(parts[at], share))
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        return torch.stack(losses)

    def _numbers(self, micro_losses: Tensor, norm: Tensor) -> Float[Tensor, "3"]:
        """Loss, gradient norm and loss scale, on the device."""
        one = torch.ones((), device=micro_losses.device)
        scale = one if self.scaler is None else self.scaler.scale(one)
        return torch.stack([micro_losses.sum(), norm.to(micro_losses), scale])

    def _pass(
        self, part: tuple[Tensor, Tensor], share: Float[Tensor, ""] | float
    ) -> Float[Tensor, ""]:
        with self.precision.autocast(self.device):
            mean = self.loss(self.model, *part)
        # bfloat16 has three digits: too few for a loss, and for a sum of losses.
        loss = _weight(mean.float(), share)
        ranks = self.parallel.ranks.size
        summed = loss if ranks == 1 else loss * ranks  # DDP and FSDP2 average gradients over ranks
        (summed if self.scaler is None else self.scaler.scale(summed)).backward()
        return loss.detach()

    def _clip(self) -> Float[Tensor, ""]:
        if self.clip_norm is not None:
            return clip_by_norm(self.model.parameters(), self.clip_norm)
        return global_norm(
            parameter.grad for parameter in self.model.parameters() if parameter.grad is not None
        )

    def _outcome(self, passes: StepPasses, *, is_spike: bool) -> Outcome:
        if not passes.is_finite and self.on_nonfinite != "take":
            is_overflow = isfinite(passes.loss) and self._lower_scale(passes.loss_scale)
            return Outcome.SCALE_LOWERED if is_overflow else Outcome.NONFINITE
        assert self.spikes is not None or not is_spike
        is_left_out = is_spike and self.spikes is not None and self.spikes.config.on_spike != "note"
        return Outcome.SPIKE if is_left_out else Outcome.UPDATED

    def _lower_scale(self, scale: float) -> bool:
        """Lower the loss scale after an overflow; False where that cannot help."""
        if self.scaler is None or scale <= LEAST_LOSS_SCALE:
            return False
        self.scaler.update()
        lowered = self.scaler.get_scale()
        if lowered < LEAST_LOSS_SCALE:
            self.scaler.update(LEAST_LOSS_SCALE)
        return lowered < scale

    def _update(self) -> None:
        self.skipped_in_a_row = 0
        # Not scaler.step, which would synchronize again to check for inf, which is known here.
        self.optimizer.step()
        if self.scaler is not None:
            self.scaler.update()

    def _count_skip(
        self,
        outcome: Outcome,
        passes: StepPasses,
        size: int,
        step: int,
        batch: tuple[Tensor, Tensor],
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
            if is_over or self.spikes.config.on_spike == "stop":
                raise SpikeError(self._text(spike_text(passes), step), step=step, batch=batch)
        elif is_over or self.on_nonfinite == "stop":
            text = nonfinite_text(passes, size, len(batch[0]), self.model, self.parallel.ranks)
            raise NonFiniteError(self._text(text, step), step=step, batch=batch)

    def _text(self, what: str, step: int) -> str:
        skipped = self.skipped_in_a_row - 1
        before = f" after {skipped} skipped steps in a row" if skipped else ""
        return (
            f"Step {step}{before}: {what} Weights and optimizer state are unchanged. Lower the "
            "learning rate or clip_norm, inspect the batch, or skip such steps (on_nonfinite, "
            "on_spike)."
        )


def _inputs_and_targets(batch: StepBatch, device: torch.device) -> tuple[Tensor, Tensor]:
    inputs, targets = (batch[:, :-1], batch[:, 1:]) if isinstance(batch, Tensor) else batch
    if len(inputs) != len(targets) or len(inputs) == 0:
        raise UsageError(
            f"A batch needs as many targets as rows, and at least one row; got {len(inputs)} rows "
            f"and {len(targets)} targets."
        )
    return inputs.to(device), targets.to(device)


def _shares(targets: Tensor, size: int, ranks: Ranks) -> Sequence[Tensor | float]:
    """Each micro-batch's fraction of all counted targets, over all ranks; tensors if targets must
    be counted on the device. All ranks have equally many rows.
    """
    parts = targets.split(size)
    if len(parts) == 1 and ranks.size == 1:
        return [1.0]
    if targets.is_floating_point():
        return [len(part) / (len(targets) * ranks.size) for part in parts]
    counts = torch.stack([(part != IGNORED).sum() for part in parts])
    total = ranks.gather_on_device(counts.sum()[None]).sum()
    return list((counts / total).unbind())


def _weight(mean: Float[Tensor, ""], share: Float[Tensor, ""] | float) -> Float[Tensor, ""]:
    """The mean times its share; 0 for a share of 0, where the mean is NaN."""
    if isinstance(share, float):
        return mean if share == 1.0 else mean * share
    return torch.where(share == 0, 0.0, mean * share)


def _check(
    micro_batch: int, least_micro_batch: int, on_nonfinite: OnNonfinite, most_skipped: int
) -> None:
    if not 1 <= least_micro_batch <= micro_batch:
        raise UsageError(
            f"expected 1 <= least_micro_batch <= micro_batch, got {least_micro_batch} and "
            f"{micro_batch}."
        )
    check_choice("on_nonfinite: unknown value", on_nonfinite, get_args(OnNonfinite))
    if most_skipped < 0:
        raise UsageError(f"most_skipped: expected 0 or more, got {most_skipped}.")
