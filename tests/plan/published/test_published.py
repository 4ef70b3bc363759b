"""Every published figure comes out of the closed forms as nearly as its row says, and no wider."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.plan.published.figures import IMPLIED, ROWS
from tests.plan.published.page import SECONDARY, WIDTH, page
from tests.plan.published.row import DAYS, PERCENT, TIGHT, Implied, Row, Source, mistakes
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.units import Unit

PAGE = Path(__file__).parents[3] / "docs" / "published.md"


def name(row: Row | Implied) -> str:
    return f"{row.source.title}: {row.what}"


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_published_figure_is_as_its_row_says(row: Row) -> None:
    assert mistakes(row) == []


@pytest.mark.parametrize("row", IMPLIED, ids=name)
def test_what_published_hours_imply(row: Implied) -> None:
    assert row.ours == row.implied
    assert row.computed().unit is row.unit.unit
    if row.unit is PERCENT:
        assert 10 < float(row.ours) < 60  # nobody trained a large model beyond that


def test_no_row_stands_twice() -> None:
    keys = [(row.source.title, row.what, row.inputs, row.unit.name) for row in ROWS]
    assert sorted({pair for pair in keys if keys.count(pair) > 1}) == []


def test_a_title_is_one_source() -> None:
    sources = {row.source for row in (*ROWS, *IMPLIED)}
    assert len({source.title for source in sources}) == len(sources)


# The checker finds what it is there to find.

PAPER = Source("It", "Somebody 2020, table 1", "Half a day, doubled.")


def half_days(count: float) -> Quantity:
    return derive("time", Unit.SECONDS, "43200 * count", count=of(count, Unit.NUMBER))


GOOD = Row(source=PAPER, what="a day", published="1.0", unit=DAYS, computed=lambda: half_days(2))
FAR = replace(GOOD, computed=lambda: half_days(2.2), tolerance=0.15, why="It was a long day.")
APART = replace(GOOD, computed=lambda: half_days(3), differs_by=0.5, why="It was a night too.")


@pytest.mark.parametrize("row", [GOOD, FAR, APART], ids=["good", "far", "apart"])
def test_rows_that_hold(row: Row) -> None:
    assert mistakes(row) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (replace(GOOD, computed=lambda: half_days(2.2)), "does not round to"),
        (replace(GOOD, published="1.00", computed=lambda: half_days(2.02)), "does not round to"),
        (replace(GOOD, published="1.2"), "does not round to"),
        (replace(GOOD, unit=PERCENT), "published in fraction"),
        (replace(GOOD, computed=lambda: of(86400.0, Unit.SECONDS)), "no formula"),
        (replace(GOOD, tolerance=0.1, why="None."), "needs no tolerance"),
        (replace(GOOD, why="There is no difference."), "only a difference"),
        (replace(GOOD, source=replace(PAPER, citation="")), "where it comes from"),
        (replace(GOOD, source=replace(PAPER, about="")), "where it comes from"),
        (replace(GOOD, what=""), "where it comes from"),
        (replace(FAR, tolerance=0.09), "may be 9.000% off"),
        (replace(FAR, tolerance=0.1 * TIGHT * 1.01), "needs no tolerance"),
        (replace(FAR, why=""), "only a difference"),
        (replace(APART, differs_by=0.49), "differs by +0.5000, not by +0.4900"),
        (replace(APART, computed=lambda: half_days(2), differs_by=0.0), "reproduced after all"),
        (replace(APART, why=""), "only a difference"),
    ],
)
def test_a_row_that_does_not_hold_is_found(row: Row, said: str) -> None:
    assert any(said in mistake for mistake in mistakes(row)), mistakes(row)


@pytest.mark.parametrize("row", ROWS, ids=name)
def test_a_figure_that_is_perturbed_is_found(row: Row) -> None:
    """Ours moved by twice what is allowed, and by a millionth at least."""
    allowed = max(2.1 * row.rounding / float(row.digits), 2.1 * row.tolerance, 1e-6)
    right = row.computed()
    number = right.value * (1 + allowed + abs(row.difference))
    assert mistakes(replace(row, computed=lambda: structs.replace(right, value=number)))


# The page.


def test_the_page_is_the_one_that_is_made() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "`make docs` brings it up to date"


def test_the_page_has_every_row_once() -> None:
    lines = page().splitlines()
    printed = [
        line for line in lines if line.startswith("| ") and not line.startswith(("| what ", "| :-"))
    ]
    assert len(printed) == len(ROWS) + len(IMPLIED)


def test_the_page_says_what_is_secondary() -> None:
    secondary = {row.source for row in (*ROWS, *IMPLIED) if row.source.is_secondary}
    assert page().count(SECONDARY) == len(secondary) > 0


def test_the_page_is_narrow() -> None:
    assert [line for line in page().splitlines() if len(line) > WIDTH] == []
