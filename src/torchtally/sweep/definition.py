"""A sweep as plain data: its base config, and the values of each run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from torchtally.checkpoints.newest import differences
from torchtally.errors import UsageError
from torchtally.files.reading import parse_toml, read_text
from torchtally.train.config import WHAT, TrainConfig
from torchtally.train.keys import KeyValues, changed_config, flag, read_changes, value_text

VERSION: Literal[2] = 2
LONGEST_NAME = 100
"""Characters of a run's folder; file systems end at 255 bytes."""
MOST_DEFINITION_BYTES = 64_000_000
"""Of a sweep's own file: some hundred thousand runs."""
MOST_DIFFERENCES = 8
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9.+-]+")
ALONE = "run"
"""The name of the run if nothing varies."""


class SweepPoint(msgspec.Struct, frozen=True, dict=True):
    """One run."""

    name: str
    """The unique name of its folder."""
    flags: tuple[str, ...]
    """The values as command-line flags of `tally train`."""

    @cached_property
    def values(self) -> KeyValues:
        return read_changes(self.flags)


class Definition(
    msgspec.Struct, frozen=True, kw_only=True, dict=True, tag_field="format", tag="torchtally sweep"
):
    """What a sweep trains. A folder accepts only one definition."""

    format_version: Literal[2] = VERSION
    config: str
    """The path of the TOML file, for messages."""
    toml: str
    """The whole text: later edits affect no run."""
    keeps_checkpoints: bool
    points: tuple[SweepPoint, ...]

    @cached_property
    def varying_keys(self) -> tuple[str, ...]:
        """Keys with more than one value."""
        return varying_keys([point.values for point in self.points])

    def train_config(self, point: SweepPoint) -> TrainConfig:
        """The config of a run. Raises UsageError that names key and value."""
        return changed_config(self.toml, self.config, point.values)

    def as_text(self) -> str:
        """Definition as JSON text."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


def define(
    config: str, toml: str, points: Sequence[KeyValues], *, keeps_checkpoints: bool
) -> Definition:
    """The sweep, with every run's config validated. Raises UsageError for the first invalid one."""
    for values in points:
        changed_config(toml, config, values)
    pairs = zip(_names(points), points, strict=True)
    runs = tuple(SweepPoint(name, tuple(flag(*one) for one in values)) for name, values in pairs)
    return Definition(config=config, toml=toml, points=runs, keeps_checkpoints=keeps_checkpoints)


def load_definition(path: Path) -> Definition:
    """A sweep's file. Raises UsageError for anything else."""
    return read_definition(read_text(path, "a sweep", MOST_DEFINITION_BYTES), str(path))


def read_definition(text: str, place: str) -> Definition:
    """A sweep written by `as_text`. Raises UsageError for anything else."""
    try:
        definition = msgspec.json.decode(text, type=Definition)
        varying_keys([point.values for point in definition.points])  # read now, to be refused here
    except (ValueError, RecursionError, UsageError) as error:
        raise UsageError(
            f"{place}: is not a sweep of format version {VERSION}, or damaged ({error}). Move it "
            "away, use another --out, or the torchtally that wrote it."
        ) from error
    return definition


# Names ------------------------------------------------------------------------------------------


def varying_keys(points: Sequence[KeyValues]) -> tuple[str, ...]:
    """Keys whose value is not the same in all points, in order."""
    values_by_key: dict[str, set[str]] = {}
    for values in points:
        for key, value in values:
            values_by_key.setdefault(key, set()).add(repr(value))
    return tuple(key for key, texts in values_by_key.items() if len(texts) > 1)


def short_names(keys: Sequence[str]) -> Mapping[str, str]:
    """The shortest unambiguous ending of each key: `lr`, `adamw.lr`."""
    names = {}
    for key in keys:
        parts = key.split(".")
        ends = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        names[key] = next(
            (ending for ending in ends if not any(_ends_in(k, ending) for k in keys if k != key)),
            key,
        )
    return names


def _ends_in(key: str, end: str) -> bool:
    return key == end or key.endswith(f".{end}")


def _names(points: Sequence[KeyValues]) -> list[str]:
    """Names such as `lr=0.01,layers=2`, safe for shells and file systems."""
    short = short_names(varying_keys(points))
    names: list[str] = []
    used_names: set[str] = set()
    for n, values in enumerate(points):
        parts = (
            f"{short[key]}={NOT_IN_NAMES.sub('_', value_text(value)).strip('_') or '_'}"
            for key, value in values
            if key in short
        )
        name = ",".join(parts) or ALONE
        # Truncated or ambiguous names get their number; so do names that are equal on a file system
        # that ignores case.
        if len(name) > LONGEST_NAME:
            name = f"{name[:LONGEST_NAME]}-{n}"
        while name.casefold() in used_names:
            name += f"-{n}"
        used_names.add(name.casefold())
        names.append(name)
    return names


# Differences ------------------------------------------------------------------------------------


def difference(there: Definition, here: Definition) -> str:
    """The differences of two sweeps, one per line; "" if they are the same."""
    lines = [*_config_lines(there.toml, here.toml), *_run_lines(there, here)]
    if there.keeps_checkpoints != here.keeps_checkpoints:
        lines.append(
            f"  --keep-checkpoints: {_what_varies(there)} there, {_what_varies(here)} here"
        )
    if len(lines) > MOST_DIFFERENCES:
        more = len(lines) - MOST_DIFFERENCES + 1
        lines = [*lines[: MOST_DIFFERENCES - 1], f"  and {more} more"]
    return "\n".join(lines)


def _what_varies(definition: Definition) -> str:
    return "yes" if definition.keeps_checkpoints else "no"


def _config_lines(there: str, here: str) -> Iterator[str]:
    a, b = (parse_toml(text, "the sweep's config", WHAT) for text in (there, here))
    for key, *values in differences(a, b):
        texts = ("not set" if value is None else repr(value) for value in values)
        yield "  {}: {} there, {} here".format(key, *texts)


def _run_lines(there: Definition, here: Definition) -> Iterator[str]:
    a, b = ({repr(point.values): point for point in each.points} for each in (there, here))
    for one, other, where in ((a, b, "there"), (b, a, "here")):
        for values, point in one.items():
            if values not in other:
                listed = ", ".join(f"{key}={value_text(value)}" for key, value in point.values)
                yield f"  a run {where} alone: {listed or ALONE}"
