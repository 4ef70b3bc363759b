"""Resuming from the newest whole checkpoint."""

import errno
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from torchtally.errors import CheckpointError, UsageError
from torchtally.train.checkpoints.folder import Checkpoints
from torchtally.train.checkpoints.manifest import Manifest, NewerFormatError, as_plain_json
from torchtally.train.checkpoints.randomness import seed_all
from torchtally.train.checkpoints.state import (
    explain_damaged_state,
    hyperparameter_changes,
    restore,
)
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.logs.log import Say, as_json, versions
from torchtally.train.ranks import Ranks
from torchtally.train.trainer import Trainer

_OURS = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of this process that say nothing about the checkpoint."""

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


def newest_whole(checkpoints: Checkpoints, ranks: Ranks, say: Say) -> Manifest | None:
    """The newest checkpoint whose every byte passes its checksum; the ranks share the work.

    Raises CheckpointError if there are checkpoints and all are damaged.
    """
    steps = ranks.run_on_first(checkpoints.steps, "look for checkpoints")
    refused: list[str] = []
    for step in steps:
        manifest = _manifest_if_whole(checkpoints, step, ranks)
        if isinstance(manifest, Manifest):
            return manifest
        refused.append(manifest)
        if step != steps[-1]:
            aside = ranks.run_on_first(
                lambda: checkpoints.set_aside(step).name,  # noqa: B023 - called at once
                "set a damaged checkpoint aside",
            )
            say(f"{manifest} It is kept as {aside}; trying the one before it.")
    if refused:
        raise CheckpointError(
            f"{checkpoints.path}: every checkpoint is damaged. {refused[-1]} "
            "Start over with --replace."
        )
    return None


def _manifest_if_whole(checkpoints: Checkpoints, step: int, ranks: Ranks) -> Manifest | str:
    """The manifest, or the first error on any rank."""
    wrong: str | None = None
    manifest: Manifest | None = None
    try:
        manifest = checkpoints.manifest(step)
        checkpoints.check(manifest, part=ranks.rank, parts=ranks.size)
    except NewerFormatError:
        raise
    except CheckpointError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _OURS:
            raise
        wrong = str(error)
    wrongs: list[str] = [mistake for mistake in ranks.gather_values(wrong) if mistake is not None]
    if wrongs:
        return wrongs[0]
    assert manifest is not None
    return manifest


# The config --------------------------------------------------------------------------------------


def differences(
    saved: Mapping[str, Any], here: Mapping[str, Any], before: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """(key, saved, here) of all differing values; None for a missing key."""
    for key in {**saved, **here}:
        was, now = saved.get(key), here.get(key)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from differences(was, now, f"{before}{key}.")
        elif was != now:
            yield before + key, was, now


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


def check_versions(manifest: Manifest, say: Say) -> None:
    """Report version changes, which may change results bitwise."""
    for name, was, now in differences(manifest.versions, versions()):
        say(
            f"step {manifest.step} was saved with {name} {was}, this is {now}: "
            "results may differ bitwise."
        )
