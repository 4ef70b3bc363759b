"""A history played back: every number here is a sum of the few events above it."""

from typing import Any

import torch

import torchtally
from torchtally import torch_private as private
from torchtally.runs.measure.history import STEP_MARK, play
from torchtally.runs.measure.lines import lines, place_of
from torchtally.trace import Role
from torchtally.trace.measurement import BACKWARD, ELSEWHERE

Event = dict[str, Any]


def event(action: str, address: int, size: int, step: int | None = None, line: int = 1) -> Event:
    """As in torch's snapshot; of a thread that says no step where there is none."""
    said = "" if step is None else f"{STEP_MARK}{step}"
    frames = [{"filename": "/home/me/train.py", "name": "main", "line": line}]
    return {
        "action": action,
        "addr": address,
        "size": size,
        "user_metadata": said,
        "frames": frames,
    }


def test_peaks_are_of_blocks_rounded_up_and_of_segments() -> None:
    played = play(
        [
            event("segment_alloc", 0, 2 << 20),
            event("alloc", 0, 1),
            event("alloc", 512, 513),
            event("free_requested", 0, 1),
            event("free_completed", 0, 1),
            event("alloc", 0, 512),
            event("segment_map", 2 << 20, 2 << 20),
            event("segment_free", 0, 2 << 20),
        ],
        [],
    )
    assert played.peak_allocated_bytes == 512 + 1024
    assert played.peak_reserved_bytes == 4 << 20
    assert [block.bytes for block, _ in played.at_peak] == [512, 1024]
    assert played.step_peaks == ((1536, 4 << 20),)


def test_each_step_has_its_peak_and_starts_from_what_is_held() -> None:
    played = play(
        [
            event("alloc", 0, 1024),
            event("alloc", 4096, 512),
            event("free_requested", 4096, 512),
            event("free_requested", 0, 1024, step=1),
            event("alloc", 0, 2048),  # another thread: it is still the second step
            event("alloc", 4096, 2048, step=1),
            event("free_requested", 0, 2048, step=2),
        ],
        [{}, {}],
    )
    assert [allocated for allocated, _ in played.step_peaks] == [1536, 4096, 4096]
    assert (played.peak_allocated_bytes, played.peak_step) == (4096, 1)


def test_a_block_keeps_the_role_it_had_at_the_end_of_its_step() -> None:
    parameter, gradient, activation = 0, 4096, 8192
    events = [
        event("alloc", parameter, 512),
        event("alloc", activation, 2048),
        event("alloc", gradient, 512),
        event("free_requested", activation, 2048),
        event("free_requested", gradient, 512, step=1),
        event("alloc", gradient, 1024, step=1),  # somebody else's, at the gradient's address
    ]
    at_step_end = {parameter: Role.PARAMETER, gradient: Role.GRADIENT}
    held = {block.address: role for block, role in play(events, [at_step_end]).at_peak}
    assert held == {**at_step_end, activation: None}
    later = [*events, event("alloc", 12288, 4096, step=1)]
    held = {block.address: role for block, role in play(later, [at_step_end]).at_peak}
    assert held == {parameter: Role.PARAMETER, gradient: None, 12288: None}


def test_in_an_unfinished_step_the_last_word_counts() -> None:
    events = [event("alloc", 0, 512)]
    (block,) = play(events, [], {0: Role.PARAMETER}).at_peak
    assert block[1] is Role.PARAMETER


def test_nothing_at_all() -> None:
    played = play([], [])
    assert (played.peak_allocated_bytes, played.at_peak, played.step_peaks) == (0, (), ((0, 0),))


def frame(file: str, name: str, line: int) -> dict[str, Any]:
    return {"filename": file, "name": name, "line": line}


ENGINE = frame(private.engine_code().co_filename, private.engine_code().co_name, 1)
TORCH = frame(f"{torch.__path__[0]}/nn/modules/linear.py", "forward", 134)
OURS = frame(f"{torchtally.__path__[0]}/tracer/script.py", "execute", 1)
LIBRARY = frame("/venv/site-packages/transformers/models/gpt2.py", "forward", 9)
OWN = frame("/home/me/train.py", "main", 7)


def test_the_line_is_the_innermost_of_the_users_own() -> None:
    assert place_of([TORCH, OWN, frame("/home/me/train.py", "<module>", 9)]) == (OWN["filename"], 7)
    assert place_of([TORCH, LIBRARY, OWN]) == (OWN["filename"], 7)
    assert place_of([TORCH, LIBRARY, OURS]) == (LIBRARY["filename"], 9)
    assert place_of([TORCH, OURS]) == (ELSEWHERE, 0)


def test_backward_is_the_same_in_a_thread_of_its_own_and_below_its_caller() -> None:
    assert place_of([]) == place_of([TORCH, ENGINE, OWN]) == (BACKWARD, 0)
    assert place_of([TORCH, OWN]) == place_of([TORCH, OWN, ENGINE, LIBRARY]) == (OWN["filename"], 7)


def test_lines_add_up_most_first() -> None:
    events = [event("alloc", 0, 512, line=3), event("alloc", 512, 512, line=4),
              event("alloc", 1024, 512, line=3)]  # fmt: skip
    shown_lines = lines(block for block, _ in play(events, []).at_peak)
    assert [(line.line, line.bytes) for line in shown_lines] == [(3, 1024), (4, 512)]
