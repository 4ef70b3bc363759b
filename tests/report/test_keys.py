"""Documents are types: what they hold, how it is filled, what is refused."""

import json
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pytest
from msgspec import UNSET, UnsetType, field

from torchtally.report.documents import documents
from torchtally.report.keys import Bytes, Document, DocumentPart, dumps, filled, finite, key


@dataclass
class Shelf:
    name: str
    size: int
    books: tuple["Book", ...] = ()


@dataclass
class Book:
    title: str
    pages: int | None = None


class BookPart(DocumentPart, frozen=True):
    title: str
    pages: Annotated[int | None, key("Sheets, counted twice")]


class ShelfDocument(Document, tag="shelf/1", frozen=True):
    name: str
    size: Bytes = field(name="size_bytes")
    books: list[BookPart]
    lent: int | UnsetType = UNSET


def test_a_document_takes_the_attributes_of_its_fields_names() -> None:
    shelf = Shelf("poems", 5, (Book("Duino", 60), Book("Lost")))
    assert json.loads(dumps(filled(ShelfDocument, shelf))) == {
        "schema": "shelf/1",
        "name": "poems",
        "size_bytes": 5,
        "books": [{"title": "Duino", "pages": 60}, {"title": "Lost", "pages": None}],
    }


def test_values_go_before_sources_and_sources_before_later_ones() -> None:
    document = filled(ShelfDocument, Shelf("first", 1), Shelf("second", 2), size=3, lent=UNSET)
    assert (document.name, document.size, document.lent) == ("first", 3, UNSET)


def test_a_missing_source_is_null() -> None:
    assert filled(BookPart, None, title="Lost") == BookPart(title="Lost", pages=None)


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str`.*size_bytes"):
        filled(ShelfDocument, Shelf("poems", "five"))  # type: ignore[arg-type]
    with pytest.raises(msgspec.ValidationError, match="missing required field `pages`"):
        filled(BookPart, title="Duino")


def test_what_was_written_is_read_by_its_type() -> None:
    written = dumps(filled(ShelfDocument, Shelf("poems", 5)))
    assert msgspec.json.decode(written, type=ShelfDocument).size == 5
    kinds = {kind.__struct_config__.tag for kind in documents().values()}
    assert len(kinds) == len(documents()) == 28


def test_numbers_stay_as_they_are_but_for_those_that_json_lacks() -> None:
    large = 2**60 + 1
    assert [finite(large), finite(True), finite(0.5), finite("x")] == [large, True, 0.5, "x"]
    assert finite(True) is True
    assert [finite(float("-inf")), finite(float("nan"))] == ["-inf", "nan"]
