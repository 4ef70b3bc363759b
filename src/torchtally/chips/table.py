"""Reading chips from TOML: every key is checked, and an error says file, chip and key."""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torchtally.chips.chip import PEAK_DTYPES, Chip, Link, Node, Peak, Price
from torchtally.chips.names import essences
from torchtally.errors import UsageError

TABLE = Path(__file__).with_name("chips.toml")


def load_chips(path: str | Path) -> tuple[Chip, ...]:
    """Chips of a TOML file in the form of `chips.toml`.

    Raises UsageError naming the file, the chip and the key that is wrong.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a table of chips: {error}") from error
    return _chips(path, text)


@lru_cache(maxsize=8)
def _chips(path: Path, text: str) -> tuple[Chip, ...]:
    """Remembered by what the file says, so that asking again costs no more than reading it."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: cannot be read as a table of chips: {error}") from error
    rows = document.get("chip")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: holds no chips. Each begins with a line [[chip]].")
    loaded = tuple(_chip(_Row(str(path), f"chip {at}", row)) for at, row in enumerate(rows, 1))
    _check_distinct(path, loaded)
    return loaded


def _check_distinct(path: Path, loaded: Sequence[Chip]) -> None:
    """No two chips of one file answer to the same name."""
    counts = Counter(name for chip in loaded for name in essences(chip))
    for name, count in counts.items():
        if count > 1:
            owners = [chip.name for chip in loaded if name in essences(chip)]
            raise UsageError(f"{path}: {' and '.join(owners)} all answer to {name!r}.")


@dataclass(frozen=True, slots=True)
class _Row:
    """One TOML table, and where it stands, for messages."""

    path: str
    place: str
    values: Mapping[str, Any]

    def wrong(self, key: str, complaint: str) -> UsageError:
        return UsageError(f"{self.path}: {self.place}: {key}: {complaint}")

    def only(self, allowed: Sequence[str]) -> None:
        """Refuses keys that mean nothing, so that a misspelt one is not silently dropped."""
        for key in self.values:
            if key not in allowed:
                near = get_close_matches(key, allowed, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(allowed)}."
                raise self.wrong(key, f"no such key; {hint}")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self.wrong(key, f"expected a text, found {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"expected a list of texts, found {value!r}")
        return tuple(value)

    def number(self, key: str) -> float:
        return self._positive(key, self._value(key, None), (int, float), "a number above zero")

    def number_or_none(self, key: str) -> float | None:
        return self.number(key) if key in self.values else None

    def whole(self, key: str) -> int:
        value = self._value(key, None)
        return int(self._positive(key, value, (int,), "a whole number above zero"))

    def whole_or_none(self, key: str) -> int | None:
        return self.whole(key) if key in self.values else None

    def below(self, key: str) -> "_Row | None":
        """The table under this key."""
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, dict):
            raise self.wrong(key, f"expected a table, found {value!r}")
        return _Row(self.path, f"{self.place}: {key}", value)

    def _value(self, key: str, default: str | None) -> Any:
        if key not in self.values and default is None:
            raise self.wrong(key, "is missing")
        return self.values.get(key, default)

    def _positive(self, key: str, value: Any, kinds: tuple[type, ...], expected: str) -> float:
        is_number = isinstance(value, kinds) and not isinstance(value, bool)
        if not is_number or not 0 < value < float("inf"):
            raise self.wrong(key, f"expected {expected}, found {value!r}")
        number: float = value
        return number


CHIP_KEYS = tuple(f.name for f in fields(Chip) if f.name != "is_memory_estimated")


def _chip(row: _Row) -> Chip:
    row = _Row(row.path, row.text("name"), row.values)
    row.only(CHIP_KEYS)
    source = row.text("source")
    memory_bytes = row.whole_or_none("memory_bytes")
    label_bytes = row.whole_or_none("memory_label_bytes")
    known_bytes = memory_bytes or label_bytes
    if known_bytes is None:
        raise row.wrong("memory_bytes", "is missing (memory_label_bytes would do)")
    return Chip(
        name=row.place,
        vendor=row.text("vendor"),
        architecture=row.text("architecture"),
        memory_bytes=known_bytes,
        is_memory_estimated=memory_bytes is None,
        memory_label_bytes=label_bytes,
        program_memory_bytes=row.whole_or_none("program_memory_bytes"),
        memory_type=row.text("memory_type", ""),
        memory_bandwidth_bytes_per_s=row.number("memory_bandwidth_bytes_per_s"),
        achieved_bandwidth_bytes_per_s=_achieved(
            row, "achieved_bandwidth_bytes_per_s", "memory_bandwidth_bytes_per_s"
        ),
        peaks=_peaks(row, source),
        source=source,
        sources=_sources(row),
        aliases=row.texts("aliases"),
        driver_names=row.texts("driver_names"),
        compute_capability=_compute_capability(row),
        multiprocessors=row.whole_or_none("multiprocessors"),
        l2_cache_bytes=row.whole_or_none("l2_cache_bytes"),
        boost_clock_hz=row.number_or_none("boost_clock_hz"),
        tensor_clock_hz=row.number_or_none("tensor_clock_hz"),
        link=_link(row.below("link")),
        host_link=_link(row.below("host_link")),
        node=_node(row.below("node"), source),
        tdp_watts=row.number_or_none("tdp_watts"),
        price=_price(row.below("price")),
        note=row.text("note", ""),
    )


def _compute_capability(row: _Row) -> tuple[int, int] | None:
    value = row.values.get("compute_capability")
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(type(part) is int and part >= 0 for part in value)
    ):
        raise row.wrong("compute_capability", f"expected two numbers as in [9, 0], found {value!r}")
    return value[0], value[1]


def _sources(row: _Row) -> Mapping[str, str]:
    table = row.below("sources")
    if table is None:
        return MappingProxyType({})
    table.only(CHIP_KEYS)
    return MappingProxyType({fact: table.text(fact) for fact in table.values})


def _peaks(row: _Row, source: str) -> Mapping[str, Peak]:
    table = row.below("peaks")
    if table is None:
        raise row.wrong("peaks", "is missing: a table of dense peaks in FLOP/s, by torch dtype")
    table.only(PEAK_DTYPES)
    return MappingProxyType({dtype: _peak(table, dtype, source) for dtype in table.values})


def _peak(table: _Row, dtype: str, source: str) -> Peak:
    """A peak given as a plain number, or as a table where there is more to say."""
    if not isinstance(table.values[dtype], dict):
        return Peak(table.number(dtype), source)
    row = table.below(dtype)
    assert row is not None
    row.only(tuple(f.name for f in fields(Peak)))
    dense, sparse = row.number("flop_per_s"), row.number_or_none("sparse_flop_per_s")
    if sparse is not None and abs(sparse / dense - 2) > 0.02:
        raise row.wrong(
            "sparse_flop_per_s",
            f"{sparse:g} is not twice flop_per_s = {dense:g}, which is the dense rate",
        )
    achieved = _achieved(row, "achieved_flop_per_s", "flop_per_s")
    return Peak(
        flop_per_s=dense,
        source=row.text("source", source),
        sparse_flop_per_s=sparse,
        note=row.text("note", ""),
        achieved_flop_per_s=achieved,
        achieved_source="" if achieved is None else row.text("achieved_source"),
    )


def _achieved(row: _Row, achieved_key: str, promised_key: str) -> float | None:
    """A measured rate, which is no more than the promised one."""
    achieved = row.number_or_none(achieved_key)
    if achieved is not None and achieved > (promised := row.number(promised_key)):
        raise row.wrong(achieved_key, f"{achieved:g} is above {promised_key} = {promised:g}")
    return achieved


def _link(row: _Row | None) -> Link | None:
    if row is None:
        return None
    row.only(tuple(f.name for f in fields(Link)))
    return Link(
        name=row.text("name"),
        bytes_per_s_per_direction=row.number_or_none("bytes_per_s_per_direction"),
        chips=row.whole_or_none("chips"),
    )


def _node(row: _Row | None, source: str) -> Node | None:
    if row is None:
        return None
    row.only(tuple(f.name for f in fields(Node)))
    return Node(
        gpus=row.whole("gpus"),
        name=row.text("name"),
        source=row.text("source", source),
        network=_link(row.below("network")),
    )


DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")


def _price(row: _Row | None) -> Price | None:
    if row is None:
        return None
    row.only(tuple(f.name for f in fields(Price)))
    price = Price(
        usd_per_hour=row.number("usd_per_hour"),
        source=row.text("source"),
        as_of=row.text("as_of"),
        note=row.text("note", ""),
    )
    if not DATE.fullmatch(price.as_of):
        raise row.wrong("as_of", f"expected a day as in 2026-06-30, or 2026, found {price.as_of!r}")
    return price
