"""Resuming a training from its newest whole checkpoint."""

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest, explain_damaged_state
from torchtally.checkpoints.newest import check_versions, differences, newest_whole
from torchtally.checkpoints.plain import Say
from torchtally.checkpoints.randomness import seed_all, set_random
from torchtally.errors import UsageError
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.trainer import Trainer

FREE = (
    "log.", "evaluation.", "sampling.", "profile.", "checkpoint.", "on_nonfinite", "on_spike",
    "data.read", "model.weights", "model.init_std",
    "data.train", "data.validation", "data.text", "data.dtype",
)  # fmt: skip
"""Keys of a config that do not affect a resumed training: weights are read before the first step
only, and the data is compared by its fingerprints, whatever its files are called."""
ROUNDING = ("device", "compile", "micro_batch", "loss_chunk_tokens", "parallel.",
            "optimizer.implementation", "model.recompute")  # fmt: skip
"""Keys that only affect rounding."""
SAID = (*ROUNDING, "fingerprints.validation.")
"""What may differ and is reported."""
OF_THE_IMPLEMENTATION = ("lr", "fused", "foreach", "capturable", "differentiable", "maximize")
"""Keys of an optimizer's groups that are not compared; the schedule sets the learning rate."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a training resumes."""

    step: int
    skipped: int = 0
    """Steps skipped so far."""
    is_evaluated: bool = True
    """Whether the evaluation due after that step was done."""
    best: tuple[int, float] | None = None
    """The step with the lowest validation loss, and that."""

    def loop_state(self) -> dict[str, Any]:
        """As stored in a checkpoint."""
        return asdict(self)


def resume(
    trainer: Trainer, checkpoints: Checkpoints, say: Say, *, allows_changes: bool = False
) -> ResumePoint | None:
    """Load the newest whole checkpoint into the trainer; None where there is no checkpoint.

    Damaged ones are reported and renamed. Raises CheckpointError if all are damaged, UsageError if
    the config describes another training, unless changes are allowed.
    """
    ranks = trainer.ranks
    manifest = newest_whole(checkpoints, ranks, say)
    if manifest is None:
        return None
    _check_changes(manifest, trainer, say, allows_changes=allows_changes)
    check_versions(manifest, say)
    random = trainer.contents.restore(checkpoints, manifest)
    set_random(random)
    if not random:  # this rank did not exist when it was saved
        seed = seed_of(Source.DROPOUT, trainer.config.seed)
        seed_all(ranks.seed(seed) + manifest.step)
    if ranks.size != manifest.ranks:
        say(
            f"step {manifest.step} was saved by {manifest.ranks} ranks, resuming on {ranks.size}: "
            "losses agree to rounding, except that dropout draws other numbers."
        )
    with explain_damaged_state(manifest):
        return msgspec.convert(manifest.state["loop"], ResumePoint)


def _check_changes(manifest: Manifest, trainer: Trainer, say: Say, *, allows_changes: bool) -> None:
    """Compare config, data and the optimizer's hyperparameters, which may have changed under the
    same config by another version's defaults, with what was saved.
    """
    contents = trainer.contents
    changed = [
        *(change for change in differences(manifest.config, contents.config)
          if not change[0].startswith(FREE)),
        *differences(manifest.fingerprints, contents.fingerprints, "fingerprints."),
    ]  # fmt: skip
    with explain_damaged_state(manifest):
        changed += [
            (key, was, now) for key, was, now in contents.optimizer_changes(manifest)
            if None not in (was, now) and key.rpartition(".")[2] not in OF_THE_IMPLEMENTATION
        ]  # fmt: skip
    text = "\n".join(f"  {key}: saved {was!r}, now {now!r}" for key, was, now in changed)
    if not allows_changes and not all(key.startswith(SAID) for key, _, _ in changed):
        raise UsageError(
            f"The checkpoint of step {manifest.step} belongs to another training:\n{text}\nResume "
            "with the saved config, add --allow-changes, or start over with --replace."
        )
    if changed:
        say(f"resuming from step {manifest.step} with changes:\n{text}")
