"""Well-known models: `known_models.toml`, each row with its source and its published count.

A row has either the keys of the model's own config.json or, where there is no such file, its sizes
as `shapes.by_hand` takes them. Tests compare every row's count with the published one.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from torchtally.errors import UsageError
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.shapes import by_hand

TABLE = Path(__file__).with_name("known_models.toml")
TUNED = re.compile(
    r"([-_](instruct|chat|it|pt|base|hf|thinking|sft|dpo))+([-_]\d{4})?$", re.IGNORECASE
)
"""Behind a model's name: trained further in the same shape, with the month that it is of."""
MOST_NAMES = 12
"""In a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One row of the table."""

    name: str
    source: str
    """A paper or a page: of the sizes, and of the count."""
    published: str = ""
    """The number of parameters as its authors print it: "174.6B", "7,241,732,096"."""
    published_inner: str = ""
    """The same without the embedding table, where that is what they print."""
    published_active: str = ""
    """Of a mixture: what one token meets, as they print it."""
    difference: str = ""
    """Why what is counted is not what is printed, where it is not."""
    aliases: tuple[str, ...] = ()
    note: str = ""
    config: Mapping[str, Any] | None = None
    shape: Mapping[str, Any] | None = None

    def model(self) -> Model:
        if self.config is not None:
            read = from_values(self.config, name=self.name, place=f"{TABLE.name}: {self.name}")
        else:
            assert self.shape is not None
            read = by_hand(**self.shape, name=self.name)
        notes = (*read.notes, self.note) if self.note else read.notes
        return replace(read, source=self.source, notes=notes)


@lru_cache(maxsize=1)
def known_models() -> tuple[KnownModel, ...]:
    """All rows, in the order of the table."""
    document = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(
        KnownModel(**row | {"aliases": tuple(row.get("aliases", ()))}) for row in document["model"]
    )


def known_model(name: str) -> Model:
    """The model of this name. Raises UsageError for an unknown one."""
    return known_row(name).model()


def known_row(name: str) -> KnownModel:
    """The row of this name; case, spaces, "-" and "_" do not matter.

    Nor does ".", unless that leaves two: "gpt-3 1.3b" is not "gpt-3 13b". A name on the Hub may end
    in what it was tuned for: "meta-llama/Llama-3.1-8B-Instruct" has the shape of Llama 3.1 8B.
    Raises UsageError with the names that begin alike, or else resemble it.
    """
    for spelling in (name, TUNED.sub("", name)):
        row = _rows().get(essence(spelling)) or _alone(
            _rows_without_dots().get(_dotless(spelling), ())
        )
        if row is not None:
            return row
    raise UsageError(_unknown(name))


def essence(name: str) -> str:
    """A name without what people spell differently, and without who published it."""
    return re.sub(r"[\s_-]", "", name.rsplit("/", 1)[-1]).lower()


def _dotless(name: str) -> str:
    return essence(name).replace(".", "")


def _alone(rows: tuple[KnownModel, ...]) -> KnownModel | None:
    return rows[0] if len(rows) == 1 else None


def near_names(name: str) -> tuple[str, ...]:
    """Names that begin with this one, or else hold it, or else resemble it."""
    bare_name = _dotless(name)
    if not bare_name:
        return ()
    rows = _rows_without_dots()
    begins = [bare for bare in rows if bare.startswith(bare_name)]
    holds = [bare for bare in rows if bare_name in bare or bare in bare_name]
    alike = get_close_matches(bare_name, rows, n=5, cutoff=0.6)
    return tuple(
        dict.fromkeys(
            known_model.name for bare in begins or holds or alike for known_model in rows[bare]
        )
    )


@lru_cache(maxsize=1)
def _rows() -> Mapping[str, KnownModel]:
    """Known models by everything that a row answers to."""
    rows: dict[str, KnownModel] = {}
    for row in known_models():
        for bare in {essence(alias) for alias in (row.name, *row.aliases)}:
            assert bare not in rows, f"{row.name} and {rows[bare].name} answer to {bare!r}"
            rows[bare] = row
    return rows


@lru_cache(maxsize=1)
def _rows_without_dots() -> Mapping[str, tuple[KnownModel, ...]]:
    """The same where "." is left out, which two rows may share."""
    rows: dict[str, tuple[KnownModel, ...]] = {}
    for bare, row in _rows().items():
        others = rows.get(_dotless(bare), ())
        rows[_dotless(bare)] = others if row in others else (*others, row)
    return rows


def _unknown(name: str) -> str:
    near = near_names(name)
    more = f", and {len(near) - MOST_NAMES} more" if len(near) > MOST_NAMES else ""
    listed = f"{', '.join(near[:MOST_NAMES])}{more}"
    begins = len(near) > 1 and any(
        _dotless(near_name).startswith(_dotless(name)) for near_name in near
    )
    guess = (
        f" It could be any of {listed}." if begins else f" Did you mean {listed}?" if near else ""
    )
    return (
        f"No known model, file or folder is called {name!r}.{guess} Or give a "
        "config.json, or --layers, --width, --heads and --vocabulary."
    )
