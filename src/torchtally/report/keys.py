"""What documents are made of: fields that say their unit and, once for each name, their meaning."""

import json
from math import isfinite
from typing import Annotated, Any, TypeVar

from msgspec import UNSET, Meta, Struct, convert, to_builtins

from torchtally.table import Cell
from torchtally.units import Unit


def key(meaning: str) -> Meta:
    """Meaning of a key, wherever it stands: said of one of the fields that have its name."""
    return Meta(description=meaning)


def in_unit(unit: Unit) -> Meta:
    return Meta(extra_json_schema={"unit": str(unit)})


Flops = Annotated[int, in_unit(Unit.FLOPS)]
Bytes = Annotated[int, in_unit(Unit.BYTES)]
Count = Annotated[int, in_unit(Unit.COUNT)]
Seconds = Annotated[float, in_unit(Unit.SECONDS)]
Hours = Annotated[float, in_unit(Unit.HOURS)]
Fraction = Annotated[float, in_unit(Unit.FRACTION)]
FlopPerS = Annotated[float, in_unit(Unit.FLOP_PER_S)]
BytesPerS = Annotated[float, in_unit(Unit.BYTE_PER_S)]
TokensPerS = Annotated[float, in_unit(Unit.TOKEN_PER_S)]
Hertz = Annotated[float, in_unit(Unit.HERTZ)]
Watts = Annotated[float, in_unit(Unit.WATTS)]
Joules = Annotated[float, in_unit(Unit.JOULES)]
Usd = Annotated[float, in_unit(Unit.USD)]
Loss = Annotated[float | str, in_unit(Unit.LOSS)]
"""A text where it is none: "NaN", "Infinity"."""
Number = Annotated[int | float, in_unit(Unit.NUMBER)]
Mixed = int | float | str
"""A number, or a text where there is none: "inf", a condition."""

ROW = "#/$defs/Row"
Cells = Annotated[dict[str, Cell | bool], Meta(extra_json_schema={"$ref": ROW})]
"""A row of a table by the names of its columns."""


class DocumentPart(Struct, frozen=True):
    """Part of a document. Unknown values are null, shares are of one."""


class Document(DocumentPart, frozen=True, tag_field="schema"):
    """Whole document, whose tag is its name and version."""


P = TypeVar("P", bound=DocumentPart)


def filled(kind: type[P], *sources: object, **values: Any) -> P:
    """A part of these values, and of attributes of its fields' names: of the first source that has
    one. What it holds is made of attributes likewise, where it is no part yet. A source that is
    None leaves what nothing else gives null.

    Raises msgspec.ValidationError for a field that nothing gives, or that is of another type.
    """
    assert values.keys() <= set(kind.__struct_fields__), (kind, values.keys())
    raw: dict[str, Any] = {}
    for field, name in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        source = next((each for each in sources if hasattr(each, field)), None)
        if field in values:
            raw |= {} if values[field] is UNSET else {name: values[field]}
        elif source is not None or None in sources:
            raw[name] = getattr(source, field, None)
    return convert(raw, kind, from_attributes=True)


def finite(number: Mixed) -> Mixed:
    """The number, or a text for what JSON has none for: "inf", "nan"."""
    return str(number) if isinstance(number, float) and not isfinite(number) else number


def dumps(document: DocumentPart, indent: int | None = 1) -> str:
    """A whole document as text, its `schema` first, one key a line, ASCII only."""
    return json.dumps(to_builtins(document, enc_hook=str.__str__), indent=indent) + "\n"


def packed(document: DocumentPart) -> str:
    """The same on one line, in as few bytes as it takes."""
    values = to_builtins(document, enc_hook=str.__str__)
    return json.dumps(values, separators=(",", ":")) + "\n"
