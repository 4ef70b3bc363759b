"""Memory over time, at the peak, for the backward pass and from step to step: all of it adds up."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from msgspec import structs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.builders import TraceBuilder, copy_in_call, factory_call, frame, mm_call, site
from tests.strategies import traces
from tests.traces import accounted
from torchtally.ledger import Ledger, account
from torchtally.memory import Category, is_alive
from torchtally.report.documents.tables import view_document
from torchtally.report.keys import dumps
from torchtally.report.prose import in_words
from torchtally.report.terminal import table_text
from torchtally.table import Table
from torchtally.trace import Phase, Role, Trace
from torchtally.views import by
from torchtally.views.activations import fullest_tick
from torchtally.views.timeline import BAR_ORDER, BAR_WIDTH, STRETCHES, bar, initial, stretches

KIB = 1024
PEAKS = ("category", "peak-line", "peak-module", "peak-repeated-module", "peak-storage")
MIX = mm_call(16, 16, 16)
"""A product whose result has 1 KiB."""


def training(steps: int = 3, *, leak_bytes: int = 0) -> TraceBuilder:
    """Two layers of 1 KiB a weight; each step leaves `leak_bytes` behind on line 9."""
    builder = TraceBuilder()
    builder.reserve(64 * KIB)
    names = ("h.0.w", "h.1.w")
    start, loop, leak = site(frame(line=1)), site(frame(line=7)), site(frame(line=9))
    weights = [
        builder.run(factory_call(16, 16), role=Role.PARAMETER, name=name, site=start)
        for name in names
    ]
    state = -1
    for _ in range(steps):
        batch = builder.run(copy_in_call(16, 16), (-1,), site=loop)
        layers = [
            site(frame("net.py", 4), frame(line=8), module=f"h.{n}", module_class="L")
            for n in range(2)
        ]
        outs = [batch]
        for weight, layer in zip(weights, layers, strict=True):
            outs.append(builder.run(MIX, (outs[-1], weight), site=layer))
        if leak_bytes:
            builder.run(MIX, (outs[-1], outs[-1]), site=leak, size=leak_bytes)
        gradients = []
        for out, layer in zip(reversed(outs[:2]), reversed(layers), strict=True):
            backward = Phase.BACKWARD
            gradients.append(
                builder.run(MIX, (out, outs[2]), site=layer, phase=backward, role=Role.GRADIENT)
            )
            builder.free(out)
        builder.free(outs[2])
        if state < 0:
            where, phase, role = site(frame(line=11)), Phase.OPTIMIZER, Role.OPTIMIZER_STATE
            state = builder.run(factory_call(16, 16), site=where, phase=phase, role=role)
        builder.run(MIX, (state, gradients[0]), outputs=(state,), phase=Phase.OPTIMIZER)
        builder.end_step()
        builder.free(*gradients)
    return builder


# Laws ------------------------------------------------------------------------------------------


def timeline_laws_broken(ledger: Ledger, table: Table) -> list[str]:
    memory = ledger.memory
    ticks, totals = table.column("tick"), table.column("bytes")
    present = [column.name for column in table.columns]
    names = [f"{category}_bytes" for category in Category]
    parts = [table.column(name) for name in names if name in present]
    marks = [
        tick for tick, name in zip(ticks, table.column("bar"), strict=True) if "<" in str(name)
    ]
    laws = {
        "categories sum to the total": [sum(row) for row in zip(*parts, strict=True)]
        == list(totals),
        "the total is what is held": [memory.timeline.at(tick) for tick in ticks] == list(totals),
        "the fullest row is the peak": max(totals, default=0) == memory.peak_bytes,
        "the peak alone is marked": marks == ([memory.peak_tick] if memory.peak_bytes else []),
        "rows are in order": list(ticks) == sorted(set(ticks)),
        "rows are few": len(ticks) <= 2 * STRETCHES,
        "no column is empty": all(map(any, parts)) or not memory.peak_bytes,
    }
    return [law for law, holds in laws.items() if not holds]


def sums_broken(table: Table, expected_bytes: int) -> list[str]:
    """Bytes sum to what is expected, shares to one, in the rows and in the totals."""
    sums = sum(table.column("bytes")), table.total("bytes")
    share = sum(table.column("bytes_share"))
    return [
        *(f"bytes are {number}" for number in sums if number != expected_bytes),
        *([f"shares are {share}"] if share != pytest.approx(1 if expected_bytes else 0) else []),
    ]


def growth_laws_broken(ledger: Ledger, table: Table) -> list[str]:
    ends = ledger.trace.step_ends
    if not ends:
        return ["rows without a step"] if table.rows else []
    names = [column.name for column in table.columns]
    after = alive_bytes(ledger, ends[-1] - 1)
    broken = [] if table.total("bytes_after") == after else ["not what is held at the end"]
    if "bytes_before" in names:
        before = alive_bytes(ledger, ends[min(2, len(ends) - 1) - 1] - 1)
        if table.total("bytes_before") != before:
            broken.append("not what was held before")
        growth = zip(
            *map(table.column, ("bytes_before", "growth_bytes", "bytes_after")), strict=True
        )
        broken += ["growth is not the difference" for old, more, new in growth if old + more != new]
    return broken


def alive_bytes(ledger: Ledger, tick: int) -> int:
    return sum(storage.bytes for storage in ledger.memory.storages if is_alive(storage, tick))


@given(trace=traces())
@settings(deadline=None)
def test_every_memory_view_adds_up(trace: Trace) -> None:
    ledger = account(trace)
    assert timeline_laws_broken(ledger, by(ledger, "timeline")) == []
    assert growth_laws_broken(ledger, by(ledger, "growth")) == []
    for key in PEAKS:
        assert sums_broken(by(ledger, key), ledger.memory.peak_bytes) == [], key
    held = ledger.memory.by_category()[Category.ACTIVATIONS]
    first, end = ledger.reported_period.first, ledger.reported_period.end
    ticks = range(first, max(end, first + 1))  # a step without operators is the moment it ends
    most = max(held.at(tick) for tick in ticks)
    assert held.at(fullest_tick(ledger)) == most
    for key in ("activations-line", "activations-module"):
        assert sums_broken(by(ledger, key), most) == [], key


@pytest.mark.thorough
@given(trace=traces())
@settings(deadline=None)
def test_every_tick_is_in_one_stretch(trace: Trace) -> None:
    parts = stretches(account(trace))
    assert [tick for first, end in parts for tick in range(first, end)] == [
        *range(max(trace.end, 1))
    ]
    assert all(first < end for first, end in parts)


def with_cell(table: Table, row: int, name: str, cell: object) -> Table:
    place = [column.name for column in table.columns].index(name)
    cells = (*table.rows[row][:place], cell, *table.rows[row][place + 1 :])
    return replace(table, rows=(*table.rows[:row], cells, *table.rows[row + 1 :]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoil", "broken"),
    [
        (lambda table: with_cell(table, 3, "activations_bytes", 7), "categories sum to the total"),
        (lambda table: with_cell(table, 3, "bytes", 7), "the total is what is held"),
        (lambda table: replace(table, rows=table.rows[:2]), "the fullest row is the peak"),
        (lambda table: with_cell(table, 0, "bar", "<"), "the peak alone is marked"),
        (lambda table: replace(table, rows=table.rows[::-1]), "rows are in order"),
        (lambda table: replace(table, rows=table.rows * 9), "rows are few"),
    ],
)
def test_a_timeline_that_does_not_add_up_is_found(
    spoil: Callable[[Table], Table], broken: str
) -> None:
    ledger = account(training().build())
    assert broken in timeline_laws_broken(ledger, spoil(by(ledger, "timeline")))


def test_a_sum_that_is_not_the_peak_is_found() -> None:
    ledger = account(training().build())
    for key in (*PEAKS, "activations-line", "activations-module"):
        table = by(ledger, key)
        whole = table.total("bytes")
        assert isinstance(whole, int)
        assert sums_broken(table, whole) == []
        assert len(sums_broken(table, whole + 512)) == 2
        assert len(sums_broken(replace(table, rows=table.rows[1:]), whole)) == 2


def test_growth_that_is_none_is_found() -> None:
    ledger = account(training(leak_bytes=KIB).build())
    table = by(ledger, "growth")
    assert growth_laws_broken(ledger, table) == []
    assert growth_laws_broken(ledger, with_cell(table, 0, "growth_bytes", 0))
    shorter = account(training(steps=4, leak_bytes=KIB).build())
    assert growth_laws_broken(shorter, table) == ["not what is held at the end"]
    assert growth_laws_broken(account(TraceBuilder().build()), table) == ["rows without a step"]


# Timeline --------------------------------------------------------------------------------------

GOLDEN = """\
Memory over the run
  step, phase     total   reserved  by category      line
  1 forward    1.00 KiB  64.00 KiB  PP               train.py:1
  1 forward    2.00 KiB  64.00 KiB  PPPP             train.py:1
  1 forward    3.00 KiB  64.00 KiB  PPPPII           train.py:7
  1 forward    4.00 KiB  64.00 KiB  PPPPIIAA         net.py:4
  1 forward    5.00 KiB  64.00 KiB  PPPPIIAAAA       net.py:4
  1 backward   6.00 KiB  64.00 KiB  PPPPGGIIAAAA     net.py:4
  1 backward   6.00 KiB  64.00 KiB  PPPPGGGGIIAA     net.py:4
  1 optimizer  5.00 KiB  64.00 KiB  PPPPOOGGGG       train.py:11
  1 optimizer  5.00 KiB  64.00 KiB  PPPPOOGGGG       (no line)
  2 forward    4.00 KiB  64.00 KiB  PPPPOOII         train.py:7
  2 forward    5.00 KiB  64.00 KiB  PPPPOOIIAA       net.py:4
  2 forward    6.00 KiB  64.00 KiB  PPPPOOIIAAAA     net.py:4
  2 backward   7.00 KiB  64.00 KiB  PPPPOOGGIIAAAA<  net.py:4
  2 backward   7.00 KiB  64.00 KiB  PPPPOOGGGGIIAA   net.py:4
  2 optimizer  5.00 KiB  64.00 KiB  PPPPOOGGGG       (no line)
  A row is the fullest moment of its stretch of the run, with the memory in use
  while its line runs. < marks the peak. P parameters, O optimizer state, G
  gradients, I inputs, A activations.
  Hidden columns (use --columns or a wider terminal): parameters_bytes,
  gradients_bytes, optimizer_state_bytes, activations_bytes, inputs_bytes,
  module, tick
"""


def test_the_timeline_at_eighty_columns() -> None:
    ledger = account(training(steps=2).build())
    assert table_text(by(ledger, "timeline"), width=80) == GOLDEN


def test_the_end_of_each_step_is_a_row() -> None:
    ledger = account(training(steps=5).build())
    ticks = by(ledger, "timeline").column("tick")
    assert {end - 1 for end in ledger.trace.step_ends} <= set(ticks)


def test_many_steps_are_put_together() -> None:
    ledger = account(training(steps=100).build())
    table = by(ledger, "timeline")
    assert len(table.rows) == STRETCHES
    assert timeline_laws_broken(ledger, table) == []


def test_what_is_reserved_is_of_the_same_device_and_tick() -> None:
    builder = training(steps=1)
    builder.reserve(128 * KIB)
    builder.run(MIX, (0, 1))
    builder.reserved.append(structs.replace(builder.reserved[-1], device="cuda:1", bytes=1))
    builder.run(MIX, (0, 1))
    reserved = by(account(builder.build()), "timeline").column("reserved_bytes")
    assert reserved[-2:] == (128 * KIB, 128 * KIB)
    assert set(reserved[:-2]) == {64 * KIB}


def test_without_an_allocator_there_is_no_column_for_it() -> None:
    builder = training(steps=1)
    builder.reserved.clear()
    table = by(account(builder.build()), "timeline")
    assert "reserved_bytes" not in [column.name for column in table.columns]


def test_a_bar_is_as_long_as_its_total() -> None:
    assert bar({Category.PARAMETERS: 3, Category.ACTIVATIONS: 4}, 14) == "PPPAAAA"
    assert bar({Category.PARAMETERS: 14}, 14) == "P" * BAR_WIDTH
    assert bar(dict.fromkeys(Category, 1), len(Category) * 100) == ""
    assert bar({}, 0) == ""


def test_every_category_has_a_letter_of_its_own() -> None:
    assert set(BAR_ORDER) == set(Category)
    assert len({initial(category) for category in Category}) == len(Category)


def test_a_run_without_a_device_has_no_memory_to_show() -> None:
    ledger = account(TraceBuilder().build())
    for key in ("timeline", "growth", "activations-line", "activations-module", *PEAKS):
        table = by(ledger, key)
        assert table.rows == ()
        assert table_text(table)
    assert by(ledger, "timeline").note == "Nothing was put on the device."


# The peak --------------------------------------------------------------------------------------


def rows(table: Table, *names: str) -> set[tuple[object, ...]]:
    return set(zip(*map(table.column, names), strict=True))


def test_modules_hold_their_parameters_and_what_they_made() -> None:
    table = by(account(training().build()), "peak-module")
    assert rows(table, "module", "class", "bytes", "parameters_bytes", "activations_bytes") == {
        ("h.0", "L", 2 * KIB, KIB, KIB),
        ("h.1", "L", 3 * KIB, KIB, KIB),  # and its gradient
        ("(outside any module)", "", 2 * KIB, 0, 0),  # a batch, optimizer state
    }


def test_repeated_modules_are_one_row_at_the_peak() -> None:
    table = by(account(training().build()), "peak-repeated-module")
    assert rows(table, "module", "module_count", "bytes", "gradients_bytes") == {
        ("h.*", 2, 5 * KIB, KIB),
        ("(outside any module)", 1, 2 * KIB, 0),
    }


def test_every_storage_at_the_peak_says_what_it_is() -> None:
    builder = training()
    workspace = builder.allocate(8 * KIB, Role.WORKSPACE, "cuBLAS workspace")
    builder.run(MIX, (0, 1), site=site(frame(line=20)))
    assert workspace == len(builder.storages) - 2
    table = by(account(builder.build()), "peak-storage")
    assert table.column("bytes")[0] == 8 * KIB
    printed = rows(table, "category", "bytes", "since", "tensor", "line", "owner")
    assert {
        ("workspaces", 8 * KIB, "step 4", "", "train.py:20", "cuBLAS workspace"),
        ("parameters", KIB, "step 1", "float32[16, 16]", "train.py:1", "h.1.w"),
        ("optimizer state", KIB, "step 1", "float32[16, 16]", "train.py:11", "train.py:11"),
        ("activations", KIB, "step 4", "float32[16, 16]", "train.py:20", "train.py:20"),
    } <= printed
    ages = rows(table, "owner", "tick", "age_ticks")
    assert ("h.0.w", 0, ledger_peak_tick(builder)) in ages


def ledger_peak_tick(builder: TraceBuilder) -> int:
    return account(builder.build()).memory.peak_tick


# Activations -----------------------------------------------------------------------------------


def test_activations_belong_to_those_who_made_them() -> None:
    ledger = account(training().build())
    table = by(ledger, "activations-line")
    assert rows(table, "line", "bytes", "count") == {("net.py:4", 2 * KIB, 2)}
    table = by(ledger, "activations-module")
    assert rows(table, "module", "bytes", "module_count") == {("h.*", 2 * KIB, 2)}
    assert "step 3, forward of net.py:4" in table.note


def test_a_run_that_saves_nothing_says_so() -> None:
    builder = TraceBuilder()
    builder.run(factory_call(4), role=Role.PARAMETER)
    assert "No activations" in by(account(builder.build()), "activations-line").note


class Block(nn.Module):
    """Attention and two layers, each added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(x)))


class Transformer(nn.Module):
    def __init__(self, is_checkpointed: bool) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.blocks = nn.ModuleList(Block(64) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.is_checkpointed else block(x)
        return x


def transformer(is_checkpointed: bool) -> Callable[[], None]:
    def train() -> None:
        model = Transformer(is_checkpointed).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            model(torch.randn(4, 32, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


@pytest.mark.thorough
def test_a_checkpointed_transformer_holds_one_blocks_activations() -> None:
    plain, checkpointed = (accounted(transformer(flag)) for flag in (False, True))
    tables = [by(ledger, "activations-module") for ledger in (plain, checkpointed)]
    times = [
        dict(zip(table.column("module"), table.column("module_count"), strict=True))
        for table in tables
    ]
    assert times[0]["blocks.*.attention"] == times[0]["blocks.*"] == 4
    assert times[1]["blocks.*.attention"] == 1  # repeated for one block at a time
    assert times[1]["blocks.*"] == 4  # whose inputs are kept
    assert "recompute" in tables[1].note
    assert tables[1].total("bytes") * 2 < tables[0].total("bytes")  # type: ignore[operator]
    for ledger in (plain, checkpointed):
        assert timeline_laws_broken(ledger, by(ledger, "timeline")) == []
        assert set(by(ledger, "growth").column("growth_bytes")) == {0}
        reserved = by(ledger, "timeline").column("reserved_bytes")
        totals = by(ledger, "timeline").column("bytes")
        assert all(held <= kept for held, kept in zip(totals, reserved, strict=True))


# Growth ----------------------------------------------------------------------------------------


def test_a_healthy_loop_does_not_grow() -> None:
    table = by(account(training().build()), "growth")
    assert table.column("line") == ("(3 lines as before)",)
    assert table.column("growth_bytes") == (0,)
    assert table.note.startswith("No leak")


def test_a_leak_is_at_its_line_with_its_bytes_per_step() -> None:
    table = by(account(training(leak_bytes=5 * KIB).build()), "growth")
    assert table.column("line")[0] == "train.py:9"
    first = rows(table.top(1), "bytes_before", "bytes_after", "growth_bytes", "storages")
    assert first == {(10 * KIB, 15 * KIB, 5 * KIB, 1)}
    assert table.total("growth_bytes") == 5 * KIB
    assert "train.py:9" in table_text(table, width=80)
    assert "the chip is full after about" in in_words(table.note)


def test_growth_over_more_steps_has_its_mean() -> None:
    table = by(account(training(steps=6, leak_bytes=KIB).build()), "growth")
    assert rows(table.top(1), "growth_bytes", "growth_per_step_bytes") == {(4 * KIB, KIB)}


@pytest.mark.parametrize("steps", [1, 2])
def test_too_few_steps_say_what_to_do(steps: int) -> None:
    note = by(account(training(steps=steps).build()), "growth").note
    assert f"Only {steps} step" in note
    assert "--steps 3" in note


def test_no_step_is_nothing_to_compare() -> None:
    table = by(account(training(steps=0).build()), "growth")
    assert table.rows == ()
    assert "No training step" in table.note


def test_what_shrinks_comes_last() -> None:
    builder = training(steps=2)
    builder.free(0)
    builder.run(MIX, (1, 1), site=site(frame(line=30)))
    builder.run(MIX, (1, 1), site=site(frame(line=31)))
    builder.end_step()
    table = by(account(builder.build()), "growth")
    assert table.column("growth_bytes") == (KIB, KIB, -KIB, -2 * KIB, 0)


def test_an_unknown_chip_has_no_end() -> None:
    trace = structs.replace(training(leak_bytes=KIB).build(), chip="Z9000")
    assert "chip is full" not in in_words(by(account(trace), "growth").note)


def test_a_script_that_keeps_its_losses_grows_at_the_line_that_makes_them() -> None:
    def leaking() -> None:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for _ in range(3):
            out = model(torch.ones(512, 64, device="cuda"))
            losses.append(out.square())  # the whole tensor, and its graph
            losses[-1].mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    table = by(accounted(leaking), "growth")
    assert (
        table.column("source")[0]
        == "losses.append(out.square())  # the whole tensor, and its graph"
    )
    assert table.column("growth_bytes")[0] == 512 * 64 * 4
    assert table.total("growth_bytes") == 512 * 64 * 4
    assert all(more == 0 for more in table.column("growth_bytes")[1:])


def test_a_graph_that_is_kept_grows_where_it_was_made() -> None:
    def leaking() -> None:
        layer = nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(layer.parameters())
        total = torch.zeros((), device="cuda")
        for _ in range(3):
            with torch.enable_grad():
                total = total + layer(torch.ones(512, 64, device="cuda")).relu().sum()
            layer(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    table = by(accounted(leaking), "growth")
    assert "relu().sum()" in str(table.column("source")[0])
    assert table.column("growth_bytes")[0] >= 2 * 512 * 64 * 4  # type: ignore[operator]


# Programs --------------------------------------------------------------------------------------


def test_the_views_are_documents_too() -> None:
    ledger = account(training(leak_bytes=KIB).build())
    for key in ("timeline", "growth", "activations-line", "activations-module", *PEAKS):
        table = by(ledger, key)
        document = json.loads(dumps(view_document(table, ledger)))
        names = [column.name for column in table.columns]
        assert len(set(names)) == len(names)
        line = names.index("line") if "line" in names else len(names)
        names[line:line] = ["file"] * (line < len(names))
        assert [list(row) for row in document["rows"]] == [names] * len(table.rows)
        assert dumps("view", document).isascii()
    first = json.loads(dumps(view_document(by(ledger, "timeline"), ledger)))["rows"][0]
    assert (first["moment"], first["bytes"], first["tick"]) == ("1 forward", KIB, 0)
