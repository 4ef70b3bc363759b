"""What a run that does not fit needs, from one run with unlimited memory."""

from tests.builders import GPU, TraceBuilder, unknown_call
from torchtally.ledger import account
from torchtally.memory.allocator import replay
from torchtally.memory.allocator.needed import TOLERANCE, NeededMemory
from torchtally.report.text import verdict as verdict_text
from torchtally.runs.probe.main import verdict
from torchtally.views.summary import judge

MIB = 1 << 20


def test_segments_that_a_growing_tensor_left_behind_are_not_needed() -> None:
    """Of 100, 200, ... 1000 MiB each lives beside the one before it: 1900 MiB at most. Without an
    end of memory all are kept: 5500 MiB.
    """
    builder, kept = TraceBuilder(), -1
    for hundreds in range(1, 11):
        larger = builder.allocate(hundreds * 100 * MIB)
        builder.run(unknown_call(), outputs=[larger])
        if kept >= 0:
            builder.free(kept)
        kept = larger
        builder.run(unknown_call(), outputs=[kept])
    trace = builder.build()
    played = replay(trace, device=GPU)
    peaks = played.peak_allocated_bytes, played.peak_reserved_bytes
    assert peaks == (1900 * MIB, 5500 * MIB)
    needed = NeededMemory(trace, peaks, GPU)
    assert needed.more_than(0) <= 1900 * MIB * (1 + 2 * TOLERANCE)
    assert verdict(needed, "", 1500 * MIB, 1500 * MIB).peak_reserved_bytes == needed.more_than(0)
    assert verdict(needed, "", 2000 * MIB, 2000 * MIB).fits


def test_the_verdict_of_a_run_that_went_on_says_what_it_needs() -> None:
    """Of 1, 2, ... 10 GiB each lives beside the one before it: 19 GiB of a T4's 15, not 55."""
    builder, kept = TraceBuilder(chip="T4"), -1
    for gib in range(1, 11):
        larger = builder.allocate(gib << 30)
        builder.reserve(sum(range(gib + 1)) << 30)
        builder.run(unknown_call(), outputs=[larger])
        if kept >= 0:
            builder.free(kept)
        kept = larger
    outcome = judge(account(builder.build()))
    assert outcome.claim == "does not fit"
    assert 19 << 30 <= outcome.reserved_bytes <= (19 << 30) * (1 + 2 * TOLERANCE)
    assert "peak 19" in verdict_text(outcome)
