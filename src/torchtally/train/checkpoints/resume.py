"""Resuming from the newest whole checkpoint."""

from dataclasses import dataclass
from typing import Any

import msgspec

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest, as_plain_json, explain_damaged_state
from torchtally.checkpoints.newest import check_versions, differences, newest_whole
from torchtally.checkpoints.plain import Say, as_json
from torchtally.checkpoints.randomness import seed_all
from torchtally.errors import UsageError
from torchtally.train.checkpoints.state import hyperparameter_changes, restore
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
FINGERPRINTS = "fingerprints"
SAID = (*ROUNDING, f"{FINGERPRINTS}.validation.")
"""What may differ and is reported."""


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
        return {"skipped": self.skipped, "is_evaluated": self.is_evaluated, "best": self.best}


def resume(
    trainer: Trainer, checkpoints: Checkpoints, say: Say, *, allows_changes: bool = False
) -> ResumePoint | None:
    """Load the newest whole checkpoint into the trainer; None where there is no checkpoint.

    Damaged ones are reported and renamed. Raises CheckpointError if all are damaged, UsageError if
    the config describes another training, unless changes are allowed.
    """
    manifest = newest_whole(checkpoints, trainer.ranks, say)
    if manifest is None:
        return None
    _check_config(manifest, trainer, say, allows_changes=allows_changes)
    check_versions(manifest, say)
    goes_on = restore(trainer, checkpoints, manifest)
    _check_optimizer(manifest, trainer, say, allows_changes=allows_changes)
    ranks = trainer.ranks
    if not goes_on:
        seed = seed_of(Source.DROPOUT, trainer.config.seed)
        seed_all(ranks.seed(seed) + manifest.step)
    if ranks.size != manifest.ranks:
        say(
            f"step {manifest.step} was saved by {manifest.ranks} ranks, resuming on {ranks.size}: "
            "losses agree to rounding, except that dropout draws other numbers."
        )
    with explain_damaged_state(manifest):
        loop = manifest.state["loop"]
        best = msgspec.convert(loop.get("best"), tuple[int, float] | None)
        return ResumePoint(manifest.step, int(loop["skipped"]), bool(loop["is_evaluated"]), best)


# The config --------------------------------------------------------------------------------------


def _check_config(manifest: Manifest, trainer: Trainer, say: Say, *, allows_changes: bool) -> None:
    here = as_plain_json(as_json(trainer.config.document()))
    changed = [
        difference
        for difference in differences(manifest.config, here)
        if not difference[0].startswith(FREE)
    ]
    if manifest.format_version > 1:  # format 1 has no fingerprints
        data = as_plain_json(as_json(trainer.task.fingerprints))
        changed += differences(manifest.fingerprints, data, f"{FINGERPRINTS}.")
    grave = [difference for difference in changed if not difference[0].startswith(SAID)]
    text = "\n".join(f"  {key}: saved {was!r}, now {now!r}" for key, was, now in changed)
    if grave and not allows_changes:
        raise UsageError(
            f"The checkpoint of step {manifest.step} belongs to another training:\n{text}\nResume "
            "with the saved config, add --allow-changes, or start over with --replace."
        )
    if changed:
        say(f"resuming from step {manifest.step} with changes:\n{text}")


def _check_optimizer(
    manifest: Manifest, trainer: Trainer, say: Say, *, allows_changes: bool
) -> None:
    """Compare what the optimizer has now with what was saved: read back, not taken from the config.

    They differ with a changed config, or with the defaults of another version.
    """
    with explain_damaged_state(manifest):
        changes = list(dict.fromkeys(hyperparameter_changes(trainer, manifest)))
    if not changes:
        return
    text = f"the optimizer has {', '.join(changes)}"
    if not allows_changes:
        raise UsageError(
            f"Resumed from step {manifest.step}, {text}. Give the saved values in the config, add "
            "--allow-changes, or start over with --replace."
        )
    say(f"resuming from step {manifest.step}, {text}")
