"""Guesses by allocations that grow along straight lines."""

from dataclasses import replace

import pytest
from msgspec import structs

from torchtally.chips import chip
from torchtally.fit.extrapolate import (
    Allocations,
    Growth,
    NotLinearError,
    Peaks,
    replay_allocations,
)
from torchtally.trace import Call, TensorSpec

MIB = 1 << 20
EVENTS = (1, 2, -1, -2, 0)
"""Two storages, both alive at one time; then the cache is emptied."""


def growth() -> Growth:
    """20 MiB, and 20 MiB for each: a value of 3 takes 20 + 60."""
    return Growth(
        1, Allocations(EVENTS, (20 * MIB, 20 * MIB)),
        2, Allocations(EVENTS, (20 * MIB, 40 * MIB)), {},
    )  # fmt: skip


CHIP = chip("H100-SXM")


def fits(value: int, capacity_bytes: int) -> bool:
    return growth().peaks_at(value, capacity_bytes, CHIP).fits


def test_sizes_grow_along_a_line() -> None:
    assert growth().at(3).sizes == [20 * MIB, 60 * MIB]
    assert growth().at(0).sizes == [20 * MIB, 0]


def test_the_allocator_says_what_fits() -> None:
    assert fits(3, 80 * MIB)
    assert not fits(3, 80 * MIB - 1)
    assert fits(0, 20 * MIB)
    assert growth().peaks_at(3, None, CHIP) == Peaks(True, 80 * MIB, 80 * MIB)


def test_runs_that_did_other_things_are_not_alike() -> None:
    other = Allocations((1, 2, -2, -1, 0), (1, 1))
    assert growth().is_alike
    assert not Growth(1, growth().first, 2, other, {}).is_alike
    streams = replace(growth().second, uses_streams=True)
    assert not Growth(1, growth().first, 2, streams, {}).is_alike


def test_what_is_no_line_is_said_or_rounded() -> None:
    """10 bytes at 1 and 11 at 3: 10.5 at 2."""
    runs = Allocations((1,), (10,)), Allocations((1,), (11,))
    with pytest.raises(NotLinearError):
        Growth(1, runs[0], 3, runs[1], {}).at(2)
    assert Growth(1, runs[0], 3, runs[1], {}, is_exact=False).at(2).sizes == [10]


def softmax(rows: int) -> Call:
    """Its backward pass takes scratch memory of the size of its result: 256 KiB a row."""
    spec = TensorSpec("grad_output", (rows, 1 << 16), (1 << 16, 1), "float32", "cuda:0", 0)
    return Call(
        "aten._softmax_backward_data", "default", (spec,), (structs.replace(spec, argument=""),)
    )


def test_scratch_memory_follows_from_shapes_and_the_chip() -> None:
    """Event 1 is the first beyond no storages: the call. 1,024 rows are 256 MiB."""
    runs = Allocations((1,), (), calls=(softmax(16),)), Allocations((1,), (), calls=(softmax(32),))
    line = Growth(1, runs[0], 2, runs[1], {})
    assert line.at(64).calls == (softmax(1024),)
    assert line.peaks_at(64, None, CHIP).peak_allocated_bytes == 256 * MIB


def test_cublas_workspaces_are_the_chips_own() -> None:
    """32 MiB on Hopper; 2 x 4 MiB and 8 x 16 KiB before."""
    run = Allocations((1,), (1,), blas=(0,))
    assert replay_allocations(run, None, CHIP, {}).peak_allocated_bytes == 32 * MIB
    assert replay_allocations(run, None, chip("A100-SXM"), {}).peak_allocated_bytes == 8 * MIB + (
        128 << 10
    )
