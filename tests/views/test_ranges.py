"""How far a verdict may be off, by hand."""

import pytest
from msgspec.structs import replace

from tests.builders import GPU, TraceBuilder, factory_call
from torchtally.chips import chip
from torchtally.ledger import Ledger, account
from torchtally.memory.workspace import context_bytes
from torchtally.timing.roofline import Roofline
from torchtally.trace import Ending, Refusal, Reserved
from torchtally.views.ranges import memory_range, time_range

H100 = chip("H100-SXM")
CONTEXT = context_bytes(H100.compute_capability)
GIB = 1 << 30


def ledger_of(allocated: int, reserved: int) -> Ledger:
    made = TraceBuilder()
    made.run(factory_call(1), size=allocated)
    made.end_step()
    made.reserved.append(Reserved(GPU, 0, reserved))
    return account(made.build(), roofline=Roofline(H100))


def test_a_run_needs_what_is_allocated_and_at_most_five_percent_more_than_reserved() -> None:
    memory = memory_range(ledger_of(10 * GIB, 20 * GIB))
    assert memory.low_bytes == 10 * GIB + CONTEXT
    assert memory.likely_bytes == 20 * GIB + CONTEXT
    assert memory.high_bytes == 21 * GIB + CONTEXT
    assert memory.claim == "fits"


@pytest.mark.parametrize(("gib", "claim"), [(74, "fits"), (77, "close"), (100, "does not fit")])
def test_it_fits_outside_of_the_range_alone(gib: int, claim: str) -> None:
    """Of 79.19 GiB: 74 and 5 % are 77.7; 77 and 5 % are 80.85."""
    assert memory_range(ledger_of(gib * GIB, gib * GIB)).claim == claim


def test_a_run_that_ran_out_needs_the_request_that_was_refused() -> None:
    """4 GiB were allocated and 6 reserved when 80 more were requested."""
    ledger = ledger_of(4 * GIB, 6 * GIB)
    refusal = Refusal(GPU, 1, 80 * GIB, 4 * GIB, 6 * GIB, GIB, 0, "no room")
    ending = Ending("exception", "torch.OutOfMemoryError: no room")
    trace = replace(ledger.trace, refusals=(refusal,), ending=ending)
    memory = memory_range(account(trace, roofline=Roofline(H100)))
    assert memory.low_bytes == 84 * GIB + CONTEXT
    assert memory.likely_bytes == 86 * GIB + CONTEXT
    assert (memory.claim, memory.is_open) == ("does not fit", True)


def test_a_time_by_data_sheet_is_a_sixth_off() -> None:
    ledger = ledger_of(512, 512)
    time = time_range(ledger)
    assert time is not None
    assert time.likely_s == ledger.step_s
    assert time.low_s == pytest.approx(0.841 * time.likely_s)
    assert time.high_s == pytest.approx(1.159 * time.likely_s)
    assert time.basis == "data sheet"
    assert time_range(account(ledger.trace)) is None
