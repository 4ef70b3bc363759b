"""Rows of `timing/constants.toml` as people read them: the generated parts of docs/constants.md."""

import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from torchtally.timing.constants import TABLE


class Constant(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A row. A key that is missing, or that no row has, is an error when it is read."""

    value: float | list[Any] | dict[str, Any]
    unit: str
    meaning: str
    basis: str
    source: str
    fitted_on: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()

    def shown_value(self) -> str:
        if isinstance(self.value, dict):
            return ", ".join(f"{key} {_number(value)}" for key, value in self.value.items())
        return _number(self.value)


def _number(value: Any) -> str:
    if not isinstance(value, list):
        return f"{value:g}"
    return ("; " if isinstance(value[0], list) else ", ").join(map(_number, value))


def constants_by_subject() -> dict[str, dict[str, Constant]]:
    document = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return msgspec.convert(document, dict[str, dict[str, Constant]], strict=True)


def constants_list() -> str:
    return "\n\n".join(
        f"## {subject.capitalize()}\n\n" + "\n".join(_lines(rows))
        for subject, rows in constants_by_subject().items()
    )


def _lines(rows: dict[str, Constant]) -> Iterator[str]:
    for name, row in rows.items():
        parts = [
            f"- `{name}`, {row.shown_value()} {row.unit} ({row.basis})",
            f"{_line(row.meaning)}. {_line(row.source)}",
            *(
                f"*{label}*: {'; '.join(names)}."
                for label, names in (("Fitted on", row.fitted_on), ("Held out", row.held_out))
                if names
            ),
        ]
        yield " ".join(parts).replace(f"({row.basis}) ", f"({row.basis}): ", 1)


def _line(text: str) -> str:
    return " ".join(text.split())


def constants_count() -> str:
    rows = [row for subject in constants_by_subject().values() for row in subject.values()]
    by_basis = Counter(row.basis for row in rows)
    counts = ", ".join(f"{count} {basis}" for basis, count in by_basis.most_common())
    held = sum(1 for row in rows if row.held_out)
    return f"{len(rows)} constants: {counts}. Of the fits {held} were tried on data held out."
