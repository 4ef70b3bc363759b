"""Resuming a training from its newest whole checkpoint."""

from collections.abc import Sequence

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.newest import (
    Change,
    differences,
    newest_whole,
    refuse_changes,
    say_changes,
)
from torchtally.checkpoints.plain import Say, as_json
from torchtally.checkpoints.randomness import seed_all, set_random_states
from torchtally.train.config import TrainConfig
from torchtally.train.data.seeds import Source, seed_of
from torchtally.train.trainer import Trainer

FREE = tuple(
    """
    log. evaluation. sampling. profile. checkpoint. on_nonfinite on_spike data.read model.weights
    model.init_std data.train data.validation data.text data.dtype
    """.split()
)
"""Keys of a config that do not affect a resumed training: weights are read before the first step
only, and the data is compared by its fingerprints, whatever its files are called."""
ROUNDING = tuple(
    """
    device compile micro_batch loss_chunk_tokens parallel. optimizer.implementation model.recompute
    """.split()
)
"""Keys that only affect rounding."""
SAID = (*ROUNDING, "fingerprints.validation.")
"""What may differ and is reported."""
OF_THE_IMPLEMENTATION = ("lr", "fused", "foreach", "capturable", "differentiable", "maximize")
"""Keys of an optimizer's groups that are not compared; the schedule sets the learning rate."""


def resume(
    trainer: Trainer, checkpoints: Checkpoints, say: Say, *, allows_changes: bool = False
) -> int | None:
    """Load the newest whole checkpoint into the trainer: the steps done; None where there is none.

    Damaged ones are reported and renamed. Raises CheckpointError if all are damaged, UsageError if
    the config describes another training, unless changes are allowed.
    """
    contents, ranks = trainer.contents, trainer.ranks
    manifest = newest_whole(checkpoints, ranks, say)
    if manifest is None:
        return None
    changes = [change for change in contents.changes(manifest) if not _is_free(change)]
    check_changes(manifest, changes, allows_changes=allows_changes)
    say_changes(manifest, changes, say, "")
    random = contents.restore(checkpoints, manifest, say)
    set_random_states(random)
    if not random:  # this rank did not exist when it was saved
        seed = seed_of(Source.DROPOUT, trainer.config.seed)
        seed_all(ranks.seed(seed) + manifest.step)
    return manifest.step


def changes_of_config(manifest: Manifest, config: TrainConfig) -> list[Change]:
    """Keys that have another value than in the checkpoint and may affect what is trained."""
    changes = differences(manifest.config, as_json(config.document()))
    return [change for change in changes if not _is_free(change)]


def check_changes(manifest: Manifest, changes: Sequence[Change], *, allows_changes: bool) -> None:
    """Raises UsageError for changes by which it is another training, unless they are allowed."""
    if not allows_changes and not all(key.startswith(SAID) for key, _, _ in changes):
        refuse_changes(manifest, changes, REMEDY)


REMEDY = "Resume with the saved config, add --allow-changes, or start over with --replace."


def _is_free(change: Change) -> bool:
    key, was, now = change
    if ".param_groups[" not in key:
        return key.startswith(FREE)
    return None in (was, now) or key.rpartition(".")[2] in OF_THE_IMPLEMENTATION
