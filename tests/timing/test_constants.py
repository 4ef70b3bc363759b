"""The table of constants: every row has a unit and a source, and no fit saw what was held out."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.learn_pace import half_a
from tests.constants_page import Constant, constants_by_subject
from torchtally.timing import constants
from torchtally.timing.constants import TABLE, frozen, values

BASES = {"fit", "published", "measured", "library", "estimate"}
SOURCE = Path(constants.__file__).parent.parent


def rows() -> dict[str, Constant]:
    return {
        name: row for subject in constants_by_subject().values() for name, row in subject.items()
    }


def flaws(table: Mapping[str, Constant]) -> Iterator[str]:
    """What is wrong with a table, each by the row's name."""
    fitted = {data: name for name, row in table.items() for data in row.fitted_on}
    for name, row in table.items():
        for key in ("unit", "meaning", "source"):
            if not getattr(row, key).strip():
                yield f"{name} has no {key}"
        if row.basis not in BASES:
            yield f"{name}: no such basis: {row.basis}"
        if (row.basis == "fit") is not bool(row.fitted_on):
            yield f"{name}: fits, and they alone, say what they were fitted on"
        if row.held_out and not row.fitted_on:
            yield f"{name}: only a fit can hold data out"
        for data in row.held_out:
            if data in fitted:
                yield f"{name} holds out {data}, which {fitted[data]} was fitted on"
        for data in row.fitted_on:
            if data.endswith("half B") or "the other " in data:
                yield f"{name} was fitted on {data}, a half to hold out"


def test_every_row_has_unit_and_source_and_no_fit_saw_what_was_held_out() -> None:
    assert list(flaws(rows())) == []


@pytest.mark.parametrize(
    ("name", "change", "flaw"),
    [
        ("KERNEL_S", {"unit": ""}, "KERNEL_S has no unit"),
        ("KERNEL_S", {"source": " "}, "KERNEL_S has no source"),
        ("KERNEL_S", {"basis": "folklore"}, "KERNEL_S: no such basis: folklore"),
        ("GAP_S", {"fitted_on": ()}, "GAP_S: fits, and they alone, say what they were fitted on"),
        ("KERNEL_S", {"fitted_on": ("x",)}, "KERNEL_S: fits, and they alone, say"),
        ("TURNS", {"fitted_on": ("vTrain on one node: half B",)}, "TURNS was fitted on vTrain"),
        ("ADDED_PER_S", {"fitted_on": ("tests/truth/corpus: index_add",)},
         "ADDED_PER_S holds out tests/truth/corpus: index_add, which ADDED_PER_S was fitted on"),
        ("CAST_S", {"fitted_on": ("tests/truth/corpus: index_add",)},
         "ADDED_PER_S holds out tests/truth/corpus: index_add, which CAST_S was fitted on"),
    ],
)  # fmt: skip
def test_a_flawed_row_is_found(name: str, change: dict[str, Any], flaw: str) -> None:
    table = rows()
    changed = table | {name: msgspec.structs.replace(table[name], **change)}
    assert any(found.startswith(flaw) for found in flaws(changed))


def test_an_unknown_key_or_a_missing_one_is_an_error() -> None:
    row = {"value": 1.0, "unit": "s", "meaning": "m", "basis": "estimate", "source": "s"}
    assert msgspec.convert(row, Constant).unit == "s"
    for wrong in (row | {"note": "x"}, {k: v for k, v in row.items() if k != "unit"}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Constant)


def test_values_are_read_as_tomllib_reads_them() -> None:
    text = TABLE.read_text(encoding="utf-8")
    subjects = tomllib.loads(text).values()
    expected = {name: frozen(row["value"]) for rows in subjects for name, row in rows.items()}
    assert values(text) == expected
    assert len(expected) == sum(map(len, subjects)), "a name stands in one subject"
    assert expected["KERNEL_S"] == constants.KERNEL_S


def test_every_constant_is_used_and_the_types_of_others_than_floats_are_declared() -> None:
    texts = [path.read_text() for path in SOURCE.rglob("*.py") if path.name != "constants.py"]
    used = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", "\n".join(texts)))
    assert set(rows()) - used == set()
    declared = constants.__annotations__
    assert set(declared) <= set(rows())
    for name, kind in declared.items():
        if kind is int:
            assert isinstance(getattr(constants, name), int), name
    assert all(
        isinstance(row.value, float | int) for name, row in rows().items() if name not in declared
    )


def test_plans_are_learnt_on_half_a_alone() -> None:
    learnt = [*half_a(is_one_node=True), *half_a(is_one_node=False)]
    assert {row.half for row in learnt} == {"A"}
    assert len(learnt) > 300
