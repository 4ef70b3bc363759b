"""Rows by conditions: which remain, and what is said of the rest."""

import pytest

from torchtally.errors import UsageError
from torchtally.report.filters import filter_rows, row_filter
from torchtally.report.prose import in_words
from torchtally.report.terminal import table_text
from torchtally.table import Column, LinePlace, Table
from torchtally.units import Unit

TABLE = Table(
    "Rows",
    (
        Column("seconds", "time", Unit.SECONDS),
        Column("bytes", "held", Unit.BYTES),
        Column("phase", "phase", Unit.NAME),
        Column("line", "line", Unit.LINE),
    ),
    (
        (0.5, 2 * 2**30, "forward", LinePlace("train.py:1", "/a/train.py", 1)),
        (0.3, 2**30, "backward", LinePlace("train.py:2", "/a/train.py", 2)),
        (0.2, None, "backward", "(no line)"),
    ),
    totals=(1.0, 3 * 2**30, None, None),
    note="A note.",
)


def left(*conditions: str, table: Table = TABLE) -> tuple[object, ...]:
    return filter_rows(table, [row_filter(text) for text in conditions]).column("seconds")


@pytest.mark.parametrize(
    ("conditions", "seconds"),
    [
        (["seconds>0.2"], (0.5, 0.3)),
        (["seconds >= 200ms"], (0.5, 0.3, 0.2)),
        (["seconds=0.3"], (0.3,)),
        (["bytes>1GiB"], (0.5,)),
        (["bytes<=1073741824"], (0.3,)),  # what is unknown is not small
        (["bytes!=0"], (0.5, 0.3)),
        (["phase=Backward"], (0.3, 0.2)),
        (["phase!=backward"], (0.5,)),
        (["line~train.py"], (0.5, 0.3)),
        (["line!~train"], (0.2,)),
        (["phase=backward", "line~train.py"], (0.3,)),
        (["seconds>9"], ()),
        (["time>0.4"], (0.5,)),  # the header's word
        ([], (0.5, 0.3, 0.2)),
    ],
)
def test_rows_for_which_all_conditions_hold(
    conditions: list[str], seconds: tuple[float, ...]
) -> None:
    assert left(*conditions) == seconds


def test_totals_stay_and_the_note_says_what_part_is_shown() -> None:
    table = filter_rows(TABLE, [row_filter("phase=backward")])
    assert table.totals == TABLE.totals
    assert table.filtered_out == 1
    assert in_words(table.note) == (
        "Rows with phase=backward: 2 of 3, 50.0 % of time. The total includes all rows. A note."
    )
    assert "2 of 3" in table_text(table)


def test_no_share_is_said_of_rows_that_do_not_add_up() -> None:
    """Those of a tree hold what is inside them: the second row is a half of the first."""
    tree = Table("Tree", TABLE.columns[:1], ((1.0,), (0.5,)), totals=(1.0,))
    note = in_words(filter_rows(tree, [row_filter("seconds<1")]).note)
    assert note == "Rows with seconds<1: 1 of 2. The total includes all rows."


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("seconds", "is not a condition. These work: flops>1e9"),
        ("seconds>", "is not a condition"),
        ("", "is not a condition"),
        ("second>1", "no column 'second'. Did you mean seconds?"),
        ("phase>1", "phase is a column of text. Use =, !=, ~, !~."),
        ("seconds~1", "seconds is a column of numbers. Use >, >=, <, <=, =, !=."),
        ("seconds>soon", "soon"),
        ("bytes>1 furlong", "furlong"),
    ],
)
def test_what_is_no_condition_is_said(condition: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        left(condition)
    assert said in str(error.value)
