"""The newest whole checkpoint, and how what it was saved from differs from what is here."""

import errno
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from torchtally.checkpoints.folder import Checkpoints
from torchtally.checkpoints.manifest import Manifest, OtherFormatError
from torchtally.checkpoints.plain import Say, versions
from torchtally.checkpoints.ranks import Ranks
from torchtally.errors import CheckpointError, UsageError

_OURS = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of this process that say nothing about the checkpoint."""

Change = tuple[str, Any, Any]
"""(key, saved, here)."""


def newest_whole(checkpoints: Checkpoints, ranks: Ranks, say: Say) -> Manifest | None:
    """The newest checkpoint whose every byte passes its checksum; the ranks share the work.

    Raises CheckpointError if there are checkpoints and all are damaged.
    """
    steps = ranks.run_on_first(checkpoints.steps, "look for checkpoints")
    refused: list[str] = []
    for step in steps:
        manifest = manifest_if_whole(checkpoints, step, ranks)
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


def manifest_if_whole(checkpoints: Checkpoints, step: int, ranks: Ranks) -> Manifest | str:
    """The manifest, or the first error on any rank."""
    wrong: str | None = None
    manifest: Manifest | None = None
    try:
        manifest = checkpoints.manifest(step)
        checkpoints.check(manifest, part=ranks.rank, parts=ranks.size)
    except OtherFormatError:
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


def differences(
    saved: Mapping[str, Any], here: Mapping[str, Any], before: str = ""
) -> Iterator[Change]:
    """All differing values; None for a missing key."""
    for key in {**saved, **here}:
        was, now = saved.get(key), here.get(key)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from differences(was, now, f"{before}{key}.")
        elif was != now:
            yield before + key, was, now


def say_changes(manifest: Manifest, changes: Iterable[Change], say: Say, remedy: str) -> None:
    """Report what has changed since a checkpoint, versions too, which may change results bitwise.

    Raises UsageError for changes that need a remedy.
    """
    changes = list(changes)
    if changes and remedy:
        refuse_changes(manifest, changes, remedy)
    if changes:
        say(f"resuming from step {manifest.step} with changes:\n{_lines(changes)}")
    for name, was, now in differences(manifest.versions, versions()):
        say(
            f"step {manifest.step} was saved with {name} {was}, this is {now}: "
            "results may differ bitwise."
        )


def refuse_changes(manifest: Manifest, changes: Iterable[Change], remedy: str) -> NoReturn:
    """Raise UsageError with what has changed since a checkpoint, and the remedy."""
    raise UsageError(
        f"The checkpoint of step {manifest.step} belongs to another training:\n"
        f"{_lines(changes)}\n{remedy}"
    )


def _lines(changes: Iterable[Change]) -> str:
    return "\n".join(f"  {key}: saved {was!r}, now {now!r}" for key, was, now in changes)
