"""JSON Schema (draft 2020-12) of a document, and its keys as tables, from its type."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from msgspec.json import schema_components

from torchtally.errors import UsageError, did_you_mean
from torchtally.report.documents import documents
from torchtally.report.documents.columns import Columns
from torchtally.report.keys import ROW, DocumentPart
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
FREE = "figure_"
"""What a column begins with whose name is a figure's own (`tally plan --compare`)."""
PART, MIXED = "part", "mixed"
WORDS = {"string": "text", "boolean": "truth", "integer": "count", "object": PART}
LISTS = {"text": "names", "count": "sizes"}
"""What stands for the unit of values that have none, and of lists of them."""
NULL = {"type": "null"}
AS_TEXT = {"truth", "sizes", "names", MIXED}
"""Kinds whose cells a table spells as texts."""


@dataclass(frozen=True, slots=True)
class Term:
    """A key of documents, or a column of tables."""

    name: str
    unit: str
    """A `Unit` of numbers; text, truth, names, sizes, mixed; part for what has keys of its own."""
    meaning: str
    value: Schema
    """Schema of what it holds, of one where it is a list."""


def json_schema(name: str) -> Schema:
    """The schema of the documents of this name, each key with its unit and meaning.

    Other keys are allowed, since keys may be added within a version. Raises UsageError for a name
    that no document has.
    """
    if name not in documents():
        raise UsageError(f"Unknown document {name!r}. {did_you_mean(name, documents())}")
    kind = documents()[name]
    parts = parts_of(kind)
    root = _described(parts.pop(kind.__name__))
    inner = {title: _described(part) for title, part in parts.items()}
    if ROW in json.dumps([root, inner]):
        inner[ROW.rpartition("/")[2]] = _row()
    return {
        "$schema": DRAFT,
        "$id": f"urn:torchtally:{name}:{version(name)}",
        **root,
        "title": f"torchtally {name}",
        "description": f"{root['description']} Unknown values are null; shares are of one.",
        "$defs": inner,
    }


def schema_text(name: str) -> str:
    """The published schema as it is printed."""
    return json.dumps(json_schema(name), indent=1) + "\n"


@cache
def vocabulary() -> Mapping[str, Term]:
    """Every key by name. Its meaning is said of one field, its unit of each."""
    meanings: dict[str, str] = {}
    values: dict[str, Schema] = {}
    for part in parts_of(*documents().values(), Columns).values():
        for name, value in keys_of(part):
            meanings |= {name: value["description"]} if "description" in value else {}
            values[name] = value
    return {name: term_of(name, value, meanings[name]) for name, value in values.items()}


def term_of(name: str, value: Schema, meaning: str) -> Term:
    one, mark = _one(value)
    return Term(name, PART if mark == ".*" else _unit(value), meaning, one)


def version(name: str) -> int:
    """The number of a document's tag."""
    return int(str(documents()[name].__struct_config__.tag).rpartition("/")[2])


def documents_table() -> Table:
    """Every kind of document."""
    return Table(
        title="Documents for programs",
        columns=(
            Column("document", "document", Unit.NAME),
            Column("version", "version", Unit.COUNT),
            Column("summary", "what it is", Unit.TEXT),
        ),
        rows=tuple((name, version(name), _summary(name)) for name in documents()),
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
    schema = json_schema(name)
    has_rows = ROW.rpartition("/")[2] in schema["$defs"]
    return Table(
        title=f"{name}/{version(name)}: {_summary(name)}",
        columns=(
            Column("path", "key", Unit.NAME),
            Column("unit", "unit", Unit.WORD),
            Column("may_be", "may be", Unit.WORD),
            Column("meaning", "meaning", Unit.TEXT),
        ),
        rows=tuple(_fields("", schema, schema["$defs"])),
        note="Rows of tables have the columns that the table names, each of which may be null."
        if has_rows
        else "",
    )


def _fields(path: str, part: Schema, parts: Schema) -> Iterator[tuple[Cell, ...]]:
    """Fields of a part and all parts inside it."""
    for name, value in keys_of(part):
        place = f"{path}.{name}" if path else name
        one, mark = _one(value)
        unit = _unit(value)
        may_be = {"null": NULL in value.get("anyOf", ()), "absent": name not in part["required"]}
        yield (
            place,
            "" if unit == PART else unit,
            ", ".join(word for word, is_so in may_be.items() if is_so),
            value["description"],
        )
        if one.get("$ref", ROW) != ROW:
            yield from _fields(place + mark, parts[one["$ref"].rpartition("/")[2]], parts)


def parts_of(*kinds: type[DocumentPart]) -> dict[str, Schema]:
    """Schemas of these types and of all parts inside them, by the types' names."""
    return schema_components(kinds)[1]


def keys_of(part: Schema) -> Iterator[tuple[str, Schema]]:
    """Keys of a part but the one that names the document's schema."""
    return ((name, value) for name, value in part["properties"].items() if name != "schema")


def _summary(name: str) -> str:
    """What a document is, and which command prints it."""
    return str(documents()[name].__doc__).strip().removesuffix(".")


def _described(part: Schema) -> Schema:
    """The part's schema, each key with its meaning."""
    meant = {
        name: {"description": vocabulary()[name].meaning, **value} for name, value in keys_of(part)
    }
    return {**part, "properties": {**part["properties"], **meant}}


def _row() -> Schema:
    """A row of any table: every column there is, each of which may be null."""
    return {
        "type": "object",
        "description": "Keys are the table's columns; a column of lines is `file` and `line`.",
        "properties": {
            name: {"description": term.meaning, "anyOf": [_cell(term), NULL]}
            for name, term in vocabulary().items()
            if term.unit != PART
        },
        "patternProperties": {f"^{FREE}": {"type": ["number", "string", "null"]}},
    }


def _cell(term: Term) -> Schema:
    """A value as a table has it."""
    if term.unit in AS_TEXT:
        return {"type": ["number", "string"]}
    return {name: word for name, word in term.value.items() if name != "description"}


def _one(value: Schema) -> tuple[Schema, str]:
    """What is there where it is not null: one of a list ("[]") or a map (".*"), or it itself."""
    (first, *others) = [each for each in value.get("anyOf", (value,)) if each != NULL]
    if others or "$ref" in first:
        return (value if others else first), ""
    if "items" in first:
        return _one(first["items"])[0], "[]"
    if "additionalProperties" in first:
        return _one(first["additionalProperties"])[0], ".*"
    return first, ""


def _unit(value: Schema) -> str:
    """The unit of a value or, in a list or map, of one; a word for what has none."""
    one, mark = _one(value)
    if "unit" in one or "anyOf" in one:
        return str(one.get("unit", MIXED))
    word = PART if "$ref" in one else WORDS[one["type"]]
    return LISTS.get(word, word) if mark == "[]" else word
