"""Parts of a run: the operators of a row, trees of modules, files line by line, any moment."""

import pytest
from hypothesis import given, settings

from tests.builders import TraceBuilder, factory_call, frame, mm_call, site
from tests.report.test_text import realistic
from tests.strategies import traces
from torchtally.chips import chip
from torchtally.ledger import Ledger, account, narrow
from torchtally.timing.roofline import Roofline
from torchtally.trace import Phase, Role, Trace
from torchtally.views import by
from torchtally.views.holdings import bytes_of, holdings
from torchtally.views.module_tree import module_tree
from torchtally.views.notes import notes
from torchtally.views.peak import lines_at, modules_at, storages_at
from torchtally.views.row_entries import ROW_KEYS, row_entries
from torchtally.views.source_lines import source_files, source_table

H100 = Roofline(chip("H100-SXM"))


def two_blocks() -> Ledger:
    """Two blocks of a model, in lines 1 and 2; each 2 * 4 * 4 * 4 FLOPs forward."""
    builder = TraceBuilder()
    weight = builder.run(factory_call(4, 4), role=Role.PARAMETER, name="h.10.weight")
    for number in (10, 2):
        where = site(frame("m.py", number, "y = x @ w"), module=f"h.{number}", module_class="Block")
        out = builder.run(mm_call(4, 4, 4), (weight, weight), site=where)
        builder.run(mm_call(4, 4, 4), (out, weight), site=where, phase=Phase.BACKWARD)
    builder.end_step()
    return account(builder.build(), roofline=H100)


def test_a_part_of_a_ledger_has_its_own_total_in_every_view() -> None:
    ledger = two_blocks()
    part = narrow(ledger, [each for each in ledger.reported if each.site.module == "h.2"])
    assert part.total.flops_forward == part.total.flops_backward == 2 * 4 * 4 * 4
    assert part.total.count == 2
    assert by(part, "op").total("flops") == 2 * 2 * 4 * 4 * 4
    assert by(part, "module").column("module") == ("h.2", "h")
    assert 0 < part.total.seconds < ledger.total.seconds


@pytest.mark.thorough
@given(trace=traces())
@settings(deadline=None, max_examples=40)
def test_the_rows_of_a_view_share_all_operators_out(trace: Trace) -> None:
    ledger = account(trace, roofline=H100)
    for view in ROW_KEYS:
        table = by(ledger, view)
        seen: set[int] = set()
        for row in range(len(table.rows)):
            entries = row_entries(ledger, view, table, row)
            assert entries is not None, view
            seen |= {id(entry) for entry in entries}
            if "count" in [column.name for column in table.columns]:
                # Rows may look alike.
                assert len(entries) >= int(table.column("count")[row] or 0), view
        assert seen == {id(entry) for entry in ledger.reported}, view


def test_a_view_of_memory_has_no_operators() -> None:
    ledger = two_blocks()
    assert row_entries(ledger, "peak-line", by(ledger, "peak-line"), 0) is None


def test_a_call_shows_what_it_was_called_with() -> None:
    table = by(two_blocks(), "call")
    assert table.column("inputs")[0] == "float32[4, 4], float32[4, 4]"
    assert table.column("outputs")[0] == "float32[4, 4]"


def test_the_tree_is_in_the_order_of_the_model_with_all_inside() -> None:
    ledger = two_blocks()
    tree = module_tree(ledger)
    assert tree.table.column("module") == ("h", "  2", "  10", "(outside any module)")
    assert [row.level for row in tree.rows] == [0, 1, 1, 0]
    assert tree.table.column("flops_forward") == (256, 128, 128, 0)
    assert tree.table.column("own_seconds")[0] == 0
    blocks = tree.rows[1:3]
    assert all(tree.rows[0].holds(row.path) for row in blocks)
    assert not blocks[0].holds(blocks[1].path)


@pytest.mark.thorough
@given(trace=traces())
def test_the_top_of_the_tree_sums_to_the_total(trace: Trace) -> None:
    ledger = account(trace)
    tree = module_tree(ledger)
    tops = [
        count
        for row, count in zip(tree.rows, tree.table.column("count"), strict=True)
        if row.level == 0
    ]
    assert sum(tops) == ledger.total.count
    held = tree.table.column("peak_bytes")
    assert all(0 <= int(size or 0) <= ledger.memory.peak_bytes for size in held)


def test_a_file_has_all_its_lines_and_sums_to_its_total() -> None:
    ledger = two_blocks()
    (file,) = source_files(ledger)
    text = "\n".join(f"# {number}" for number in range(1, 13))
    table = source_table(ledger, file.path, text)
    assert table.column("line_number") == tuple(range(1, 13))
    assert table.column("flops_forward") == (
        None, 128, None, None, None, None, None, None, None, 128, None, None,
    )  # fmt: skip
    assert table.total("flops_forward") == file.total.flops_forward == 256
    assert source_table(ledger, file.path, None).column("source") == ("y = x @ w", "y = x @ w")


def test_the_slowest_line_has_the_longest_bar() -> None:
    ledger = two_blocks()
    bars = source_table(ledger, "m.py", None).column("bar")
    assert max(len(str(bar)) for bar in bars) == 10
    assert {char for bar in bars for char in str(bar)} <= set("CMNBO")


@pytest.mark.thorough
@given(trace=traces())
def test_at_every_moment_lines_modules_and_storages_sum_to_what_is_alive(trace: Trace) -> None:
    ledger = account(trace)
    for tick in range(0, trace.end + 1, max(trace.end // 4, 1)):
        alive_bytes = bytes_of(holdings(ledger, tick))
        for table in (
            lines_at(ledger, tick),
            modules_at(ledger, tick, is_folded=False),
            modules_at(ledger, tick, is_folded=True),
            storages_at(ledger, tick),
        ):
            assert sum(int(size or 0) for size in table.column("bytes")) == alive_bytes
            assert table.total("bytes") == alive_bytes


def test_another_moment_is_not_called_the_peak() -> None:
    ledger = two_blocks()
    assert lines_at(ledger, ledger.memory.peak_tick).title.startswith("Memory at the peak")
    assert lines_at(ledger, 0).title.startswith("Memory at tick 0")


def test_notes_begin_with_what_is_not_counted() -> None:
    table = notes(account(realistic()))
    assert table.column("kind")[0] == "not counted"
    assert "placeholder, number" in table.column("kind")
    assert table.column("kind")[-1] == "difference"
    assert notes(two_blocks()).rows == ()
