"""Steps recorded before on this machine, kept in the user's cache folder.

A file has the program of one configuration at one batch and sequence, or the trace of a run of all
its layers. Its name is a digest of all that the recording followed from, so another release, source
or setting finds another file. Files are written whole or not at all, the folder is bounded, and may
be deleted at any time.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from torchtally.errors import OutputError, ProgramError, TraceFileError
from torchtally.files.user_cache import cache_folder, make_room, touch
from torchtally.programs.file import load_programs, save_programs
from torchtally.programs.packed import PackedPrograms, pack
from torchtally.programs.program import RunProgram
from torchtally.programs.step import AskedStep, StepModel, step
from torchtally.trace import Trace
from torchtally.trace.record import Count, Record

MOST_BYTES = 64 << 20
"""Of the folder, some thousand programs: files that were read longest ago make room."""
PROGRAM, TRACE = "programs", "tally"
LIBRARIES = ("torch", "transformers", "peft")
SETTINGS = ("CUBLAS", "CUDA", "PYTORCH", "TORCH")
"""Beginnings of environment variables that a run reads."""
SET_BY_IMPORTS = "TORCHINDUCTOR_CACHE_DIR"
"""A folder that libraries set themselves as they are imported, and no run follows from."""


class CachedProgram(Record, frozen=True):
    """A recorded program, and the configuration that it is for."""

    model: StepModel
    sizes: dict[str, Count]
    """Of the model and of the step."""
    packed: PackedPrograms


def cached_step(values: Mapping[str, Any], asked: AskedStep) -> Trace | None:
    """The step of a config.json's keys by what is kept of it; None where nothing is.

    A damaged file is none: the recording that follows replaces it.
    """
    program, trace = cache_file(values, asked, PROGRAM), cache_file(values, asked, TRACE)
    with suppress(ProgramError):
        found = load_programs(program, CachedProgram)
        packed = found.packed.program(0)
        touch(program)
        return step(packed, found.model, found.sizes, asked, f"{releases()}, recorded before")
    with suppress(TraceFileError):
        run = Trace.load(trace)
        touch(trace)
        return replace(run, script=asked.command)
    return None


def keep_program(
    program: RunProgram,
    model: StepModel,
    sizes: Mapping[str, int],
    values: Mapping[str, Any],
    asked: AskedStep,
) -> None:
    """Keep a program for `cached_step`; `sizes` are those that it is written at.

    A folder that cannot be written to is no error: the next step is recorded again.
    """
    path = cache_file(values, asked, PROGRAM)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_programs(CachedProgram(model, dict(sizes), pack([program])), path)
        make_room(path, MOST_BYTES)


def keep_trace(trace: Trace, values: Mapping[str, Any], asked: AskedStep) -> None:
    """Keep the run of all layers for `cached_step`, as `keep_program` does."""
    path = cache_file(values, asked, TRACE)
    with suppress(OSError, OutputError):
        path.parent.mkdir(parents=True, exist_ok=True)
        trace.save(path)
        make_room(path, MOST_BYTES)


def cache_file(values: Mapping[str, Any], asked: AskedStep, ending: str) -> Path:
    """The file of a configuration and a step, with a program or a trace."""
    key = [
        values, asked.mode, asked.batch, asked.sequence, asked.usual_sequence, asked.chip.name,
        asked.world.size, asked.world.gpus_per_node,
        releases(), source_digest(),
        sorted(
            pair for pair in os.environ.items()
            if pair[0].startswith(SETTINGS) and pair[0] != SET_BY_IMPORTS
        ),
    ]  # fmt: skip
    text = json.dumps(key, sort_keys=True, default=str)
    name = blake2b(text.encode(), digest_size=16).hexdigest()
    return cache_folder("programs") / f"{name}.{ending}"


def releases() -> str:
    """Installed releases of the libraries that a recording runs: "torch 2.13.0, ..."."""
    return ", ".join(filter(None, map(release, LIBRARIES)))


def release(library: str) -> str:
    try:
        return f"{library} {version(library)}"
    except PackageNotFoundError:
        return ""


@cache
def source_digest() -> str:
    """A digest of this package's source."""
    total = blake2b(digest_size=16)
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
