"""Blocks of the allocator's history by the line of the user's own below which they were allocated.

On a GPU, autograd allocates in a thread of its own, below no Python frame; in a simulation below
the frames of whoever called `backward`. What lies above the engine is left out on both, so that
both say the same: the backward pass, or the hook or recomputation within it.
"""

import linecache
import os
from collections.abc import Iterable

from torchtally import torch_private as private
from torchtally.runs.measure.history import Frames, HistoryBlock
from torchtally.trace.measurement import BACKWARD, ELSEWHERE, MeasuredLine
from torchtally.tracer.source import Code, classify_path

Place = tuple[str, int]
"""(file, line)"""


def lines(blocks: Iterable[HistoryBlock]) -> tuple[MeasuredLine, ...]:
    """Bytes by line, most first."""
    bytes_at: dict[Place, int] = {}
    for block in blocks:
        place = place_of(block.frames)
        bytes_at[place] = bytes_at.get(place, 0) + block.bytes
    return tuple(
        MeasuredLine(file, line, linecache.getline(file, line).strip(), size)
        for (file, line), size in sorted(bytes_at.items(), key=lambda item: (-item[1], item[0]))
    )


def place_of(frames: Frames) -> Place:
    """The innermost line of the user's own, else the innermost of a library's."""
    engine = private.engine_code()
    library: Place | None = None
    is_backward = not frames
    for frame in frames:
        file, name = str(frame["filename"]), str(frame["name"])
        if (file, name) == (engine.co_filename, engine.co_name):
            is_backward = True
            break
        kind = classify_path(file)
        if kind is Code.OWN:
            return os.path.abspath(file), int(frame["line"])
        if kind is Code.LIBRARY and library is None:
            library = os.path.abspath(file), int(frame["line"])
    return library or (BACKWARD if is_backward else ELSEWHERE, 0)
