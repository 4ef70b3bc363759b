"""One optimizer step on a batch, in as many micro-batches as needed.

    rows      sequences or samples of this rank's batch      micro-batch   rows in one pass

The host synchronizes with the device once per step, before the update, to read loss, gradient norm
and loss scale together: NaN and inf must not reach the weights (`guard`). With several ranks these
are the numbers of all ranks, so that all make the same decision.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchtally.checkpoints.ranks import Ranks
from torchtally.checkpoints.shards import global_norm, local_part
from torchtally.errors import UsageError
from torchtally.train.guard import OnNonfinite, StepPasses, UpdateGuard
from torchtally.train.models.loss import IGNORED
from torchtally.train.outcome import Outcome, StepResult
from torchtally.train.parallel import BY_ITSELF, Loss, Parallel
from torchtally.train.precision import Precision
from torchtally.train.retry import halve_until_it_fits, raise_together, shortage_note
from torchtally.train.spikes import SpikeDetector

StepBatch = Tensor | tuple[Tensor, Tensor]
"""Tokens, of which inputs and targets are made; or (inputs, targets). Rows come first."""


class Stepper:
    """Takes optimizer steps, one batch each.

    Rows go through the model `micro_batch` at a time; losses are weighted by their numbers of
    targets, so that loss and gradient equal those of the whole batch to rounding. The caller sets
    learning rates. What prevents an update is the `guard`'s.

    On torch.OutOfMemoryError in the passes, and no other error, the micro-batch is halved down to
    one row, and the step repeated with the same random states. One in the update is
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
        spikes: SpikeDetector | None = None,
        parallel: Parallel = BY_ITSELF,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.precision, self.device = precision, torch.device(device)
        self.micro_batch, self.clip_norm, self.parallel = micro_batch, clip_norm, parallel
        self.guard = UpdateGuard(
            model, precision.scaler(device), on_nonfinite, most_skipped, spikes, parallel.ranks
        )

    def __call__(self, batch: StepBatch, *, step: int) -> StepResult:
        """Take one step. `step` is its number, for error messages."""
        inputs, targets = _inputs_and_targets(batch, self.device)
        began_with = min(self.micro_batch, len(inputs))
        passes = self._passes_that_fit(inputs, targets, began_with)
        is_spike, outcome = self.guard.judge(passes)
        if outcome is Outcome.UPDATED:
            if self.clip_norm is not None:
                clip(self.model.parameters(), passes.grad_norm, self.clip_norm)
            self.optimizer.step()
            self.guard.count_update()
        else:
            self.optimizer.zero_grad(set_to_none=True)
            self.guard.count_skip(outcome, passes, step, (inputs, targets))
        return StepResult(
            loss=passes.loss,
            grad_norm=passes.grad_norm,
            outcome=outcome,
            is_spike=is_spike,
            micro_batch=passes.size,
            micro_batches=len(passes.micro_losses),
            loss_scale=passes.loss_scale,
            lowered_from=began_with if passes.size < began_with else None,
        )

    def _passes(self, inputs: Tensor, targets: Tensor, size: int) -> StepPasses:
        """Forward and backward passes of all micro-batches, and the one synchronization."""
        ranks, losses = self.parallel.ranks, []
        self.optimizer.zero_grad(set_to_none=True)
        parts = list(zip(inputs.split(size), targets.split(size), strict=True))
        for at, share in enumerate(_shares(targets, size, ranks)):
            with self.parallel.around_pass(at == len(parts) - 1):
                with self.precision.autocast(self.device):
                    mean = self.loss(self.model, *parts[at])
                # bfloat16 has three digits: too few for a loss, and for a sum of losses.
                loss = _weight(mean.float(), share)
                # DDP and FSDP2 average gradients over ranks.
                summed = loss if ranks.size == 1 else loss * ranks.size
                self.guard.scale(summed).backward()
            losses.append(loss.detach())
        self.guard.unscale(self.optimizer)
        micro_losses = torch.stack(losses)
        gradients = (parameter.grad for parameter in self.model.parameters())
        norm = global_norm(local_part(grad) for grad in gradients if grad is not None)
        scale = self.guard.scale(torch.ones((), device=micro_losses.device))
        numbers = torch.stack([micro_losses.sum(), norm.to(micro_losses), scale])
        every = ranks.gather_on_device(numbers).tolist()
        # Replicas have equal gradients, but kernels may sum in different orders: use rank 0's norm.
        is_sharded = self.parallel.is_sharded
        grad_norm = sqrt(sum(norm * norm for _, norm, _ in every)) if is_sharded else every[0][1]
        loss_of_all = sum((loss for loss, _, _ in every), start=0.0)
        return StepPasses(size, loss_of_all, grad_norm, every[0][2], micro_losses)

    def _passes_that_fit(self, inputs: Tensor, targets: Tensor, size: int) -> StepPasses:
        """The passes of the largest micro-batch that fits; larger ones are not tried again."""
        if self.parallel.ranks.size > 1:
            with raise_together(size, inputs, self.parallel.ranks):
                return self._passes(inputs, targets, size)
        passes = halve_until_it_fits(
            lambda size: self._passes(inputs, targets, size),
            size,
            device=self.device,
            discard=self._discard,
            note=lambda size: shortage_note(size, inputs),
        )
        if passes.size < size:
            self.micro_batch = passes.size
        return passes

    def _discard(self) -> None:
        """Discard the attempt's gradients, and the scaler's record of having unscaled them."""
        self.optimizer.zero_grad(set_to_none=True)
        self.guard.renew_scaler(self.precision.scaler(self.device))

    def state_dict(self) -> dict[str, Any]:
        """State besides model and optimizer, as JSON data."""
        return {"micro_batch": self.micro_batch, **self.guard.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of a stepper of the same precision.

        The smaller micro-batch of the two is used: this run may have been configured for less.
        """
        self.micro_batch = min(self.micro_batch, state_dict["micro_batch"])
        self.guard.load_state_dict(state_dict)


def clip(parameters: Iterable[Tensor], norm: float, limit: float) -> None:
    """Scale all gradients by min(1, limit / (norm + 1e-6)), given their norm."""
    # Well below the limit torch would multiply by 1.
    if not norm + 1e-6 < 0.999 * limit:
        nn.utils.clip_grads_with_norm_(parameters, limit, torch.tensor(norm))


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
