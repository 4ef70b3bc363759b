"""A table as lines: texts that are cut, and still tell rows apart."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from torchtally.report.grid import table_lines
from torchtally.report.plain import LEAST_APART, cut_apart
from torchtally.table import Column, Table
from torchtally.units import Unit


def test_rows_that_a_cut_makes_alike_are_cut_where_they_are_alike() -> None:
    setting = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    changes = (f"{setting} + autocast", f"{setting} + checkpoint", setting, "autocast")
    columns = (Column("bytes", "peak", Unit.BYTES), Column("change", "change", Unit.TEXT))
    rows = tuple((1, change) for change in changes)
    table = Table(title="t", columns=columns, rows=rows, totals=(4, None))
    lines = [str(line) for line in table_lines(table, 50)]
    assert [line.partition("B  ")[2] for line in lines[2:6]] == [
        "…expandable_segments:True + autocast",
        "…expandable_segments:True + checkpoint",
        "…expandable_segments:True",
        "autocast",
    ]


def test_a_text_that_begins_as_a_whole_one_shows_how_it_goes_on() -> None:
    change = "torch.autocast(dtype=bfloat16) around the model"
    columns = (Column("bytes", "peak", Unit.BYTES), Column("change", "change", Unit.TEXT))
    rows = ((1, f"{change} + expandable_segments:True"), (1, change))
    table = Table(title="t", columns=columns, rows=rows, totals=(2, None))
    lines = [str(line) for line in table_lines(table, 8 + len(change) + 2)]
    assert "+ expandable_segments" in lines[2]
    assert "expandable" not in lines[3]


def test_paths_that_a_cut_makes_alike_show_where_they_begin() -> None:
    columns = (Column("bytes", "peak", Unit.BYTES), Column("module", "module", Unit.PLACE))
    rows = tuple((1, f"{name}.blocks.0.attention.projection") for name in ("encoder", "decoder"))
    table = Table(title="t", columns=columns, rows=rows, totals=(2, None))
    lines = [str(line) for line in table_lines(table, 30)]
    assert [line[8:15] for line in lines[2:4]] == ["encoder", "decoder"]
    assert max(map(len, lines)) <= 30


def test_a_text_with_no_room_is_hidden_whole() -> None:
    """A name takes 2 + 5 columns, a number 2 + 4, the first text 2 + 9: of 30 the other has 4."""
    columns = (
        Column("name", "name", Unit.NAME),
        Column("bytes", "peak", Unit.BYTES),
        Column("vendor", "vendor", Unit.TEXT),
        Column("family", "family", Unit.TEXT),
    )
    table = Table(title="t", columns=columns, rows=(("chip", 1, "a company", "architecture"),))
    assert [str(line) for line in table_lines(table, 30)][1:4] == [
        "  name   peak  vendor",
        "  chip    1 B  a company",
        "  Hidden columns (use",
    ]
    assert str(table_lines(table, 34)[2]).endswith("  archite…")


def test_the_only_text_that_names_rows_is_never_hidden() -> None:
    columns = (Column("bytes", "peak", Unit.BYTES), Column("line", "line", Unit.TEXT))
    table = Table(title="t", columns=columns, rows=((1, "model(x).backward()"),))
    assert str(table_lines(table, 12)[2]) == "   1 B  mod…"


@given(st.lists(st.text(alphabet="ab ", max_size=30), max_size=8), st.integers(1, 30))
def test_no_text_is_wider_than_its_column(texts: list[str], width: int) -> None:
    shown = cut_apart(texts, width)
    assert shown.keys() == set(texts)
    assert all(cell_len(text) <= width for text in shown.values())
    if width >= LEAST_APART:
        assert len(set(shown.values())) == len(set(texts))
