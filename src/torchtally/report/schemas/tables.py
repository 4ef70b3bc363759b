"""Documents, their keys and the vocabulary as tables."""

from collections.abc import Iterator

from torchtally.report.schemas import VERSIONS
from torchtally.report.schemas.shapes import (
    Foreign,
    Listed,
    Mapped,
    PartShape,
    Plain,
    Row,
    Shape,
    documents,
    has_rows,
)
from torchtally.report.schemas.vocabulary import PART, Term, vocabulary
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit


def documents_table() -> Table:
    """Every kind of document."""
    return Table(
        title="Documents for programs",
        columns=(
            Column("document", "document", Unit.NAME),
            Column("version", "version", Unit.COUNT),
            Column("summary", "printed by", Unit.TEXT),
        ),
        rows=tuple(
            (name, VERSIONS[name], document.summary) for name, document in documents().items()
        ),
        note="`tally schema NAME` prints one as JSON Schema.",
    )


def vocabulary_table() -> Table:
    """Every key, by name."""
    words = sorted(vocabulary().values(), key=lambda term: term.name)
    return Table(
        title="Keys of all documents, and columns of all tables",
        columns=(
            Column("name", "key", Unit.NAME),
            Column("unit", "unit", Unit.WORD),
            Column("meaning", "meaning", Unit.TEXT),
        ),
        rows=tuple((term.name, term.unit, term.meaning) for term in words),
    )


def fields_table(name: str) -> Table:
    """Every key of one kind of document."""
    return Table(
        title=f"{name}/{VERSIONS[name]}: {documents()[name].summary}",
        columns=(
            Column("path", "key", Unit.NAME),
            Column("unit", "unit", Unit.WORD),
            Column("may_be", "may be", Unit.WORD),
            Column("meaning", "meaning", Unit.TEXT),
        ),
        rows=tuple(_fields("", documents()[name].shape)),
        note="Rows of tables have the columns that the table names, each of which may be null."
        if has_rows(documents()[name].shape)
        else "",
    )


def _fields(path: str, shape: Shape) -> Iterator[tuple[Cell, ...]]:
    """Fields of a part and all parts inside it."""
    if isinstance(shape, PartShape):
        for key, held in shape.fields.items():
            place = f"{path}.{key}" if path else key
            yield _field(place, vocabulary()[key], held)
            yield from _fields(place, held)
    elif isinstance(shape, Listed | Mapped):
        mark = "[]" if isinstance(shape, Listed) else ".*"
        if not isinstance(shape.item, Plain | Row | Foreign):
            yield from _fields(f"{path}{mark}", shape.item)


def _field(path: str, term: Term, shape: Shape) -> tuple[Cell, ...]:
    """A row. What several of are listed or mapped has the unit of one."""
    one = shape
    while isinstance(one, Listed | Mapped):
        one = one.item
    unit = vocabulary()[one.like].unit if isinstance(one, Plain) else term.unit
    may_be = {"null": shape.is_null, "absent": shape.is_absent}
    return (
        path,
        "" if unit == PART else unit,
        ", ".join(word for word, is_so in may_be.items() if is_so),
        term.meaning,
    )
