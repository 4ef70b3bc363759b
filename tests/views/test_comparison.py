"""Chips beside each other, from one trace."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from msgspec import structs

from tests.builders import GPU, TraceBuilder, mm_call
from tests.strategies import traces
from torchtally.chips import Chip, chip
from torchtally.ledger import Ledger, account
from torchtally.memory.workspace import context_bytes
from torchtally.report.prose import in_words
from torchtally.report.terminal import table_text
from torchtally.table import Table
from torchtally.timing.roofline import Roofline
from torchtally.trace import Ending, Phase, Refusal, Trace
from torchtally.views.comparison import comparison, dominant_bound, fits_on
from torchtally.views.money import Extent, Until

N = 4096
F = 2 * N**3
GIB = 2**30


def trace(dtype: str = "bfloat16", gpu: str = "H100-SXM", held_bytes: int = 0) -> Trace:
    """Two steps: a product forward, two backward, one repeated, with so much memory held."""
    builder = TraceBuilder(chip=gpu)
    if held_bytes:
        builder.allocate(held_bytes)
    for _ in range(2):
        builder.differentiated.append(builder.clock)
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.RECOMPUTE):
            out = builder.run(mm_call(N, N, N, dtype), (-1, -1), phase=phase)
            builder.free(out)
        builder.end_step()
    return builder.build()


def timed(ledger: Trace) -> Ledger:
    return account(ledger, roofline=Roofline(chip(ledger.chip)))


def compared(table: Trace, *names: str, **options: object) -> Table:
    others = [Roofline(chip(name)) for name in names]
    return comparison(timed(table), others, **options)  # type: ignore[arg-type]


def rows(table: Table) -> dict[object, dict[str, object]]:
    names = [column.name for column in table.columns]
    return {row[0]: dict(zip(names, row, strict=True)) for row in table.rows}


def test_the_traced_chip_comes_first_and_is_marked() -> None:
    table = compared(trace(), "A100-SXM", "RTX-4090", "H200-SXM")
    assert table.column("chip") == ("H100-SXM", "A100-SXM", "RTX-4090", "H200-SXM")
    assert table.column("traced") == ("*", "", "", "")
    assert table.column("relative")[0] == 1


def test_a_row_is_what_a_ledger_of_that_chip_says() -> None:
    """By the other road: the whole trace accounted for that chip."""
    row = rows(compared(trace(), "A100-SXM"))["A100-SXM"]
    ledger = account(trace(), roofline=Roofline(chip("A100-SXM")))
    assert row["step_s"] == ledger.total.seconds
    assert row["bound"] == "compute" == dominant_bound(ledger)
    assert row["mfu"] == pytest.approx(3 * F / ledger.total.seconds / 312e12)
    traced_s = account(trace(), roofline=Roofline(chip("H100-SXM"))).total.seconds
    assert row["relative"] == pytest.approx(ledger.total.seconds / traced_s)
    # 1000 steps at a price for 3600 seconds
    price = chip("A100-SXM").price
    assert price is not None
    usd = ledger.total.seconds * 1000 / 3600 * price.usd_per_hour
    assert row["cost_usd"] == pytest.approx(usd)


def test_a_chip_given_twice_or_traced_is_there_once() -> None:
    table = compared(trace(), "H100-SXM", "A100-SXM", "A100-SXM")
    assert table.column("chip") == ("H100-SXM", "A100-SXM")


def test_a_dtype_without_a_peak_has_no_mfu_and_says_why() -> None:
    table = compared(trace(), "T4")
    row = rows(table)["T4"]
    assert row["mfu"] is None
    assert str(row["missing"]).startswith("no MFU: no peak for bfloat16")
    assert "T4: no MFU: no peak for bfloat16" in in_words(table.note)
    assert rows(table)["H100-SXM"]["mfu"] is not None


def test_a_chip_that_lacks_what_the_time_takes_has_no_time() -> None:
    bare = replace(chip("A100-SXM"), name="Bare", peaks={})
    table = comparison(timed(trace()), [Roofline(bare)])
    row = rows(table)["Bare"]
    numbers = ("step_s", "relative", "mfu", "cost_usd", "energy_joules")
    assert [row[number] for number in numbers] == [None] * 5
    assert row["bound"] == ""
    assert "no time for aten.mm x 4: Bare has no peak" in in_words(table.note)


def test_a_traced_chip_in_no_table_leaves_the_others_their_rows() -> None:
    ledger = account(structs.replace(trace(), chip="Unheard-Of"))
    by_chip = rows(comparison(ledger, [Roofline(chip("A100-SXM"))]))
    assert by_chip["Unheard-Of"]["step_s"] is None
    assert "Unheard-Of is not in the chip table" in str(by_chip["Unheard-Of"]["missing"])
    assert by_chip["A100-SXM"]["step_s"] is not None
    assert by_chip["A100-SXM"]["relative"] is None


def test_the_length_is_that_which_was_asked_for() -> None:
    table = compared(trace(), "A100-SXM", until=Until(7200.0, Extent.SECONDS))
    price = chip("A100-SXM").price
    assert price is not None
    row = rows(table)["A100-SXM"]
    assert row["seconds"] == 7200
    assert row["cost_usd"] == pytest.approx(2 * price.usd_per_hour)
    assert row["steps"] == int(7200 // row["step_s"])  # type: ignore[operator]
    assert in_words(table.title).endswith("of 2 h")


def test_the_users_prices() -> None:
    table = compared(trace(), "RTX-4090", own_prices={"RTX-4090": 0.5})
    row = rows(table)["RTX-4090"]
    assert (row["usd_per_hour"], row["price_as_of"]) == (0.5, "yours")
    assert "yours (RTX-4090)" in in_words(table.note)
    assert rows(table)["H100-SXM"]["price_as_of"] != "yours"


def test_the_note_says_what_is_estimated_and_by_what() -> None:
    note = in_words(compared(trace(), "A100-SXM").note)
    assert "The operators chosen for it" in note
    assert "Times by data sheet: H100-SXM, A100-SXM." in note
    assert "over the promised dense bfloat16 peak" in note
    assert "attention counted in full" in note
    assert "trace two steps" not in note


# Memory ----------------------------------------------------------------------------------------


def room_bytes(on: Chip) -> int:
    assert on.compute_capability is not None
    return on.total_memory_bytes - context_bytes(on)


def test_who_holds_what_the_run_held() -> None:
    """60 GiB: more than an RTX 4090 has, less than the others."""
    of_chip = rows(compared(trace(held_bytes=60 * GIB), "RTX-4090", "H200-SXM"))
    assert {name: row["fits"] for name, row in of_chip.items()} == {
        "H100-SXM": "yes", "RTX-4090": "no", "H200-SXM": "yes"
    }  # fmt: skip


def test_what_was_merely_cached_need_not_fit() -> None:
    """Reserved beyond the chip, allocated well within: the allocator is asked, and may err."""
    small = chip("RTX-4090")
    builder = TraceBuilder()
    for _ in range(2):
        out = builder.run(mm_call(N, N, N), (-1, -1), size=room_bytes(small) // 2 + GIB)
        builder.free(out)
    builder.reserve(room_bytes(small) + 2 * GIB)
    builder.run(mm_call(N, N, N), (-1, -1), outputs=[])
    ledger = timed(builder.build())
    assert fits_on(ledger, small) == ("close", "")
    builder.allocate(room_bytes(small) + 2 * GIB)
    assert fits_on(timed(builder.build()), small) == ("no", "")


def test_a_run_that_ended_out_of_memory_tells_nothing_of_a_larger_chip() -> None:
    refusal = Refusal(GPU, 8, 90 * GIB, 0, 0, 0, 0, "")
    ran_out = structs.replace(
        trace(), refusals=(refusal,), ending=Ending("exception", "torch.OutOfMemoryError: no")
    )
    ledger = timed(ran_out)
    assert fits_on(ledger, chip("H100-SXM")) == ("no", "")
    fits, why = fits_on(ledger, chip("H200-SXM"))
    assert fits == ""
    assert "--no-oom" in why


# Laws ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@given(recorded=traces())
@settings(deadline=None, max_examples=25)
def test_timing_anew_is_accounting_anew(recorded: Trace) -> None:
    """Leaving memory out changes no time, and the traced chip's row is its ledger's."""
    ledger = timed(recorded)
    for name in ("H100-SXM", "RTX-4090"):
        roofline = Roofline(chip(name))
        anew, whole = ledger.with_predicted_times(roofline), account(recorded, roofline=roofline)
        assert anew.times.slots == whole.times.slots
        assert anew.total.seconds == whole.total.seconds
        assert anew.untimed == whole.untimed


@pytest.mark.thorough
@given(recorded=traces())
@settings(deadline=None, max_examples=25)
def test_any_trace_can_be_compared(recorded: Trace) -> None:
    table = compared(recorded, "A100-SXM", "T4")
    assert all(len(row) == len(table.columns) == len(table.totals) for row in table.rows)
    assert max(map(len, table_text(table, width=80).splitlines())) <= 80


@pytest.mark.parametrize("until", [None, Until(600_000, Extent.STEPS), Until(9e7, Extent.SECONDS)])
def test_eighty_columns_are_enough(until: Until | None) -> None:
    table = compared(trace(), "RTX-PRO-6000-Blackwell", "H200-SXM", "T4", until=until)
    text = table_text(table, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "MFU" in text.splitlines()[1]
    assert "cost" in text.splitlines()[1]
