"""JSON Schema (draft 2020-12) of a kind of document, from its shape and the vocabulary."""

import json
from collections.abc import Callable
from typing import Any

from torchtally.errors import UsageError, did_you_mean
from torchtally.report.schemas import VERSIONS
from torchtally.report.schemas.shapes import (
    Foreign,
    Leaf,
    Listed,
    Mapped,
    PartShape,
    Plain,
    Row,
    Shape,
    documents,
    has_rows,
)
from torchtally.report.schemas.vocabulary import (
    FREE,
    IN_TABLES,
    MIXED,
    NAMES,
    SIZES,
    TEXT,
    TRUTH,
    Term,
    vocabulary,
)
from torchtally.units import Unit

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TYPES: dict[str, Schema] = {
    TEXT: {"type": "string"},
    TRUTH: {"type": "boolean"},
    SIZES: {"type": "array", "items": {"type": "integer"}},
    NAMES: {"type": "array", "items": {"type": "string"}},
    MIXED: {"type": ["number", "string"]},
}
"""Of the kinds that have no unit. Whole units are integers, others numbers."""


def json_schema(name: str, *, is_closed: bool = False) -> Schema:
    """The schema of the documents of this name, each key with its unit and meaning.

    Keys may be added within a version, so other keys are allowed unless it `is_closed`. Raises
    UsageError for a name that is not in VERSIONS.
    """
    if name not in VERSIONS:
        raise UsageError(f"Unknown document {name!r}. {did_you_mean(name, VERSIONS)}")
    version, document = VERSIONS[name], documents()[name]
    body = _of_part(document.shape, is_closed)
    properties = {"schema": {"const": f"{name}/{version}"}, **body["properties"]}
    return {
        "$schema": DRAFT,
        "$id": f"urn:torchtally:{name}:{version}",
        "title": f"torchtally {name}",
        "description": f"{document.summary}. Unknown values are null; shares are of one.",
        **body,
        "properties": properties,
        "required": ["schema", *body["required"]],
        **({"$defs": {"row": _row(is_closed)}} if has_rows(document.shape) else {}),
    }


def schema_text(name: str) -> str:
    """The published schema as it is printed."""
    return json.dumps(json_schema(name), indent=1) + "\n"


def _of(name: str, shape: Shape, is_closed: bool) -> Schema:
    """Schema of what a key holds, whatever its shape."""
    schema = _BY_SHAPE[type(shape)](name, shape, is_closed)
    if not isinstance(shape, Leaf | Plain) and name:
        schema = {"description": vocabulary()[name].meaning, **schema}
    return _or_null(schema) if shape.is_null else schema


def _of_part(shape: PartShape, is_closed: bool) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {key: _of(key, held, is_closed) for key, held in shape.fields.items()},
        "required": [key for key, held in shape.fields.items() if not held.is_absent],
    }
    return schema | ({"additionalProperties": False} if is_closed else {})


_BY_SHAPE: dict[type[Shape], Callable[[str, Any, bool], Schema]] = {
    Leaf: lambda name, shape, is_closed: _value(vocabulary()[name]),
    Plain: lambda name, shape, is_closed: _value(vocabulary()[shape.like]),
    PartShape: lambda name, shape, is_closed: _of_part(shape, is_closed),
    Listed: lambda name, shape, is_closed: {
        "type": "array", "items": _of("", shape.item, is_closed)
    },
    Mapped: lambda name, shape, is_closed: {
        "type": "object", "additionalProperties": _of("", shape.item, is_closed)
    },
    Row: lambda name, shape, is_closed: {"$ref": "#/$defs/row"},
    Foreign: lambda name, shape, is_closed: {"type": "object"},
}  # fmt: skip


def _value(term: Term) -> Schema:
    """Schema of a term's value: its type, unit and meaning."""
    if term.unit in TYPES:
        return {**TYPES[term.unit], "description": term.meaning}
    kind = "integer" if Unit(term.unit).is_whole else "number"
    return {"type": kind, "unit": term.unit, "description": term.meaning}


def _or_null(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return {**schema, "type": [*types, "null"]}


def _row(is_closed: bool) -> Schema:
    """A row of any table: every column there is, each of which may be null."""
    schema: Schema = {
        "type": "object",
        "description": "Keys are the table's columns; a column of lines is `file` and `line`.",
        "properties": {
            name: _or_null(_cell(term)) for name, term in vocabulary().items() if not term.is_part
        },
        "patternProperties": {f"^{FREE}": {"type": ["number", "string", "null"]}},
    }
    return schema | ({"additionalProperties": False} if is_closed else {})


def _cell(term: Term) -> Schema:
    """A value as a table has it."""
    if term.unit in IN_TABLES:
        return {"type": ["number", "string"], "description": term.meaning}
    return _value(term)
