"""Documents keep to their schemas, and to one vocabulary."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import torchtally
from tests.report.documents_of_commands import documents as printed
from torchtally.cli import main
from torchtally.memory import Category
from torchtally.plan.questions.model_card import SHOWN_RECIPES
from torchtally.report.documents import documents
from torchtally.report.documents.columns import Columns
from torchtally.report.schema import (
    AS_TEXT,
    FREE,
    MIXED,
    Term,
    fields_table,
    json_schema,
    keys_of,
    parts_of,
    term_of,
    vocabulary,
)
from torchtally.units import Unit

SOURCE = Path(torchtally.__file__).parent
COLUMN_MAKERS = ("Column", "_quantity")
NOT_IN_DOCUMENTS = ("value_1",)
MADE_UP = {
    *(f"{category}_bytes" for category in Category),
    *(f"bytes_{recipe}" for recipe in SHOWN_RECIPES),
    *(f"{dtype}_{what}" for dtype in ("bfloat16", "float16", "float32")
      for what in ("mfu", "flop_per_s")),
    *(f"{way}_{memory}_bytes_per_s" for way in ("host_to_device", "device_to_host")
      for memory in ("pinned", "pageable")),
    *(f"{name}_flop_per_s" for name in ("forward", "backward", "causal_forward",
                                        "causal_backward")),
}  # fmt: skip
"""Columns whose names are put together."""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What every command really prints, by a name for each."""
    texts = printed(tmp_path_factory.mktemp("documents"))
    return {name: json.loads(text) for name, text in texts}


@cache
def validator(name: str) -> Draft202012Validator:
    schema = closed(json_schema(name))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def closed(schema: Any) -> Any:
    """The schema without leave for keys that it does not know."""
    if isinstance(schema, list):
        return list(map(closed, schema))
    if not isinstance(schema, dict):
        return schema
    more = {"additionalProperties": False} if isinstance(schema.get("type"), str) else {}
    has_keys = isinstance(schema.get("properties"), dict)
    return {name: closed(held) for name, held in schema.items()} | (more if has_keys else {})


def faults(document: dict[str, Any]) -> list[str]:
    name = document["schema"].partition("/")[0]
    return [
        f"{error.json_path}: {error.message}" for error in validator(name).iter_errors(document)
    ]


# Schemas ------------------------------------------------------------------------------------------


def test_everything_that_commands_print_keeps_to_its_schema(
    samples: dict[str, dict[str, Any]],
) -> None:
    wrong = {name: mistakes for name, sample in samples.items() if (mistakes := faults(sample))}
    assert wrong == {}
    assert {sample["schema"].partition("/")[0] for sample in samples.values()} == set(documents())


def test_a_document_that_breaks_its_schema_is_found(samples: dict[str, dict[str, Any]]) -> None:
    whole = samples["run"]

    def broken(*path: str | int, **change: Any) -> list[str]:
        document = deepcopy(whole)
        place: Any = document
        for step in path:
            place = place[step]
        place.update(change)
        return faults(document)

    assert broken() == []
    assert "'5' is not of type 'integer'" in broken(steps="5")[0]
    assert "1.5 is not of type" in broken("totals", flops=1.5)[0]
    assert "'speed' was unexpected" in broken("memory", speed=1)[0]
    assert "'run/99' is not one of ['run/1']" in broken(schema="run/99")[0]
    assert "None is not of type 'object'" in broken(memory=None)[0]
    assert "'line' is a required property" in faults_without(whole, "lines", 0, "line")[0]
    assert "'parameters' is a required property" in faults_without(whole, "parameters")[0]


def faults_without(whole: dict[str, Any], *path: str | int) -> list[str]:
    document = deepcopy(whole)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return faults(document)


def test_a_published_schema_allows_keys_that_come_later(samples: dict[str, dict[str, Any]]) -> None:
    document = {**samples["run"], "from_the_future": 1}
    assert faults(document)
    assert not list(Draft202012Validator(json_schema("run")).iter_errors(document))


@pytest.mark.parametrize("name", documents())
def test_a_schema_can_be_told_as_a_table(name: str) -> None:
    """What the reference shows of a document: each key's unit is known."""
    assert fields_table(name).rows


def test_types_of_documents_are_there_without_what_fills_them() -> None:
    """`tally schema` starts at once: what a document is about is imported when it is filled."""
    code = (
        "import sys\n"
        "from torchtally.report.documents import documents\n"
        "assert len(documents()) > 20\n"
        "rooms = ('chips', 'ledger', 'plan', 'trace', 'views', 'work')\n"
        "assert not {f'torchtally.{room}' for room in rooms} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_column_is_described_where_it_is_published() -> None:
    rows = json_schema("view")["$defs"]["Row"]["properties"]
    assert rows["bytes_saved"] == {
        "description": "Saved by the forward pass for the backward pass",
        "anyOf": [{"type": "integer", "unit": "bytes"}, {"type": "null"}],
    }


# The vocabulary -----------------------------------------------------------------------------------


def columns_in(source: str) -> Iterator[tuple[str, Unit]]:
    """Every column that a file names outright, with its unit."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in COLUMN_MAKERS:
            name, _, unit, *_ = node.args
            if isinstance(name, ast.Constant) and isinstance(unit, ast.Attribute):
                yield str(name.value), Unit[unit.attr]


def strangers(source: str) -> list[str]:
    """Columns that the vocabulary lacks, or has in another unit."""
    words = vocabulary()
    return [
        f"{name} ({unit})"
        for name, unit in columns_in(source)
        if name not in words or not agrees(unit, words[name])
    ]


ALIKE = (
    {Unit.COUNT, Unit.PARAMETERS, Unit.TOKENS, Unit.CHIPS, Unit.STEPS},
    {Unit.TOKEN_PER_S, Unit.COUNT},
    {Unit.USD, Unit.USD_PER_HOUR},
    {Unit.NUMBER, Unit.TIMES, Unit.VALUE},
)
"""Units of which a column may have any: they differ in how a renderer writes them."""


def agrees(unit: Unit, term: Term) -> bool:
    """Whether a column with this unit is what the vocabulary says."""
    if unit is Unit.LINE:
        return term.name == "line"
    if unit.is_text:
        return term.unit in ("text", *AS_TEXT)
    is_alike = any(unit in units and term.unit in units for units in ALIKE)
    return unit == term.unit or is_alike or term.unit == MIXED


SOURCES = [path for path in SOURCE.rglob("*.py") if "Column(" in path.read_text(encoding="utf-8")]


def test_every_column_of_the_package_is_in_the_vocabulary() -> None:
    unknown = {path.name: strangers(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert len(unknown) > 30
    assert {name: names for name, names in unknown.items() if names} == {}, (
        "report/documents/ has one name, unit and meaning for each quantity: use the name of a key "
        "for what is one, and add a field to columns.py for what is not"
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('Column("speed", "speed", Unit.BYTES)', ["speed (bytes)"]),
        ('Column("flops", "FLOPs", Unit.BYTES)', ["flops (bytes)"]),
        ('_quantity("place", "line", Unit.PLACE, rank=1)', ["place (place)"]),
        ('Column("flops", "FLOPs", Unit.FLOPS, rank=1)', []),
        ('Column("fits", "fits", Unit.WORD)', []),
    ],
)
def test_a_column_outside_of_the_vocabulary_is_found(source: str, names: list[str]) -> None:
    assert strangers(source) == names


def test_every_column_that_was_printed_has_the_unit_of_the_vocabulary(
    samples: dict[str, dict[str, Any]],
) -> None:
    pairs = {
        (column["name"], column["unit"])
        for sample in samples.values()
        for table in tables_in(sample)
        for column in table["columns"]
    }
    words = vocabulary()
    assert {
        (name, unit)
        for name, unit in pairs
        if not name.startswith(FREE) and (name not in words or not agrees(Unit(unit), words[name]))
    } == set()


def tables_in(part: Any) -> Iterator[dict[str, Any]]:
    if isinstance(part, dict):
        if "columns" in part:
            yield part
        part = list(part.values())
    if isinstance(part, list):
        for each in part:
            yield from tables_in(each)


def test_a_key_has_one_unit_and_one_meaning_wherever_it_stands() -> None:
    """Said once: a field with the name of another has its meaning."""
    said: dict[str, set[str]] = {}
    units: dict[str, set[str]] = {}
    for part in parts_of(*documents().values(), Columns).values():
        for name, value in keys_of(part):
            units.setdefault(name, set()).add(term_of(name, value, "").unit)
            said.setdefault(name, set()).update(
                {value["description"]} if "description" in value else set()
            )
    assert {name: meanings for name, meanings in said.items() if len(meanings) != 1} == {}
    assert {name: kinds for name, kinds in units.items() if len(kinds) != 1} == {}


def test_every_column_that_is_described_is_one() -> None:
    columns = {name for path in SOURCES for name, _ in columns_in(path.read_text(encoding="utf-8"))}
    described = set(Columns.__struct_fields__)
    keys = {name for part in parts_of(*documents().values()).values() for name, _ in keys_of(part)}
    assert described - columns - MADE_UP == set()
    assert described & keys == set()


def test_no_two_shares_of_the_same_thing() -> None:
    """What this vocabulary replaced."""
    assert not {"share", "fraction", "usd", "op", "path_text"} & vocabulary().keys()


# The command --------------------------------------------------------------------------------------


def out(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["schema", *words]) == 0
    return capsys.readouterr().out


def test_the_command_lists_documents_keys_and_schemas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = out(capsys)
    assert all(name in listed for name in documents())
    assert json.loads(out(capsys, "run")) == json_schema("run")
    rows = json.loads(out(capsys, "run", "--fields", "--json"))["rows"]
    fields = {row["path"]: row for row in rows}
    assert fields["memory.peak_allocated_bytes"]["unit"] == "bytes"
    assert fields["lines[].seconds"]["may_be"] == "null"
    words = json.loads(out(capsys, "--vocabulary", "--json"))["rows"]
    assert [row["name"] for row in words] == sorted(vocabulary())
    out(capsys, "--out", str(tmp_path / "all"))
    files = sorted((tmp_path / "all").iterdir())
    assert [file.stem for file in files] == sorted(documents())
    for file in files:
        Draft202012Validator.check_schema(json.loads(file.read_text()))


def code(words: list[str]) -> object:
    """The exit status, also where the parser ends the process."""
    try:
        return main(["schema", *words])
    except SystemExit as stop:
        return stop.code


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rum"], "Did you mean run?"),
        (["--fields"], "--fields needs a document"),
        (["run", "--vocabulary"], "leave out the name"),
    ],
)
def test_what_the_command_refuses(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code(words) == 2
    assert said in capsys.readouterr().err
