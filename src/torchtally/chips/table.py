"""Reading chips from TOML: every key is checked, and an error says file, chip and key."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, get_args, get_type_hints

from torchtally.chips.chip import PEAK_DTYPES, Chip, Node, Offer, Peak, Price, Sibling
from torchtally.chips.families import families
from torchtally.chips.meshes import MESHES
from torchtally.chips.names import essences
from torchtally.chips.siblings import with_siblings
from torchtally.errors import UsageError
from torchtally.files.reading import parse_toml, read_text

TABLE = Path(__file__).with_name("chips.toml")
WHAT = "a table of chips"


def load_chips(path: str | Path) -> tuple[Chip, ...]:
    """Chips of a TOML file in the form of `chips.toml`.

    Raises UsageError naming the file, the chip and the key that is wrong.
    """
    path = Path(path)
    return _chips(path, read_text(path, WHAT))


@lru_cache(maxsize=8)
def _chips(path: Path, text: str) -> tuple[Chip, ...]:
    """Remembered by what the file says, so that asking again costs no more than reading it."""
    document = parse_toml(text, str(path), WHAT)
    rows = document.get("chip")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: contains no chips. Each starts with a line [[chip]].")
    loaded = tuple(_chip(_Row(str(path), f"chip {at}", row)) for at, row in enumerate(rows, 1))
    _check_distinct(path, loaded)
    others = () if path == TABLE else load_chips(TABLE)
    _check_siblings(path, loaded, others)
    return with_siblings(loaded, others)


def _check_distinct(path: Path, loaded: Sequence[Chip]) -> None:
    """No two chips of one file answer to the same name."""
    for names in (essences, families):
        _check_unique(path, loaded, names)


def _check_unique(
    path: Path, loaded: Sequence[Chip], names: Callable[[Chip], frozenset[str]]
) -> None:
    counts = Counter(name for chip in loaded for name in names(chip))
    for name, count in counts.items():
        if count > 1:
            owners = [chip.name for chip in loaded if name in names(chip)]
            raise UsageError(f"{path}: {' and '.join(owners)} share the name {name!r}.")


T = TypeVar("T")
_hints = cache(get_type_hints)


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
                hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(allowed)}."
                raise self.wrong(key, f"no such key; {hint}")

    def read(self, kind: Callable[..., T], **derived: object) -> T:
        """The dataclass whose fields are the keys, besides fields that are derived from others."""
        hints = _hints(kind)
        keys = {field.name: field for field in fields(kind) if field.name not in derived}  # type: ignore[arg-type]
        self.only((*keys, *(key for key in derived if key not in NO_KEYS)))
        for key, field in keys.items():
            is_needed = field.default is MISSING and field.default_factory is MISSING
            if is_needed or key in self.values:
                derived[key] = self.value(key, hints[key], may_be_empty=not is_needed)
        return kind(**derived)

    def value(self, key: str, hint: Any, *, may_be_empty: bool = False) -> Any:
        """What stands below a key, as a field with this annotation takes it."""
        if key not in self.values:
            raise self.wrong(key, "is missing")
        value = self.values[key]
        kind: Any = next((part for part in get_args(hint) if is_dataclass(part)), None)
        if kind is Price:
            return _price(self, key)
        if kind is not None:
            return self.below(key).read(kind)
        if hint == tuple[int, int] | None:
            is_right = isinstance(value, list) and len(value) == 2
            is_right = is_right and all(type(part) is int and part >= 0 for part in value)
            expected = "two numbers as in [9, 0]"
        elif hint == tuple[str, ...]:
            is_right = isinstance(value, list) and all(isinstance(item, str) for item in value)
            expected = "a list of strings"
        elif hint is bool:
            is_right, expected = isinstance(value, bool), "true or false"
        elif hint is str:
            is_right, expected = isinstance(value, str) and bool(value or may_be_empty), "a string"
        else:
            is_whole = int in (hint, *get_args(hint))
            is_right = isinstance(value, int if is_whole else int | float)
            is_right = is_right and value is not True and 0 < value < float("inf")
            expected = f"a {'whole ' * is_whole}number above zero"
        if not is_right:
            raise self.wrong(key, f"expected {expected}, found {value!r}")
        return tuple(value) if isinstance(value, list) else value

    def below(self, key: str, **defaults: object) -> "_Row":
        """The table under this key."""
        if not isinstance(value := self.values[key], dict):
            raise self.wrong(key, f"expected a table, found {value!r}")
        return _Row(self.path, f"{self.place}: {key}", defaults | value)

    def achieved_rate(self, key: str, promised_key: str) -> float | None:
        """A measured rate, which is no more than the promised one."""
        if key not in self.values:
            return None
        achieved, promised = self.value(key, float), self.value(promised_key, float)
        if achieved > promised:
            raise self.wrong(key, f"{achieved:g} is above {promised_key} = {promised:g}")
        rate: float = achieved
        return rate


def _check_siblings(path: Path, loaded: Sequence[Chip], others: Sequence[Chip]) -> None:
    """Each sibling is a chip of this file or of ours, of the same vendor, and no circle."""
    known = {chip.name: chip for chip in (*others, *loaded)}
    for chip in loaded:
        for key in ("measured_as", "memory_as"):
            sibling: Sibling | None = getattr(chip, key)
            if sibling is not None:
                _check_sibling(_Row(str(path), chip.name, {}), key, sibling.chip, (chip,), known)


def _check_sibling(
    row: _Row, key: str, name: str, below: tuple[Chip, ...], known: Mapping[str, Chip]
) -> None:
    """`below` are those that take over from it, one from the other."""
    vendor = below[0].vendor
    if name not in known or known[name].vendor != vendor:
        near = get_close_matches(name, [chip.name for chip in known.values()], n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise row.wrong(key, f"no chip of {vendor} is called {name!r}{hint}")
    if known[name] in below:
        circle = ", ".join([chip.name for chip in below] + [name])
        raise row.wrong(key, f"siblings in a circle: {circle}.")
    for further in (known[name].measured_as, known[name].memory_as):
        if further is not None:
            _check_sibling(row, key, further.chip, (*below, known[name]), known)


NO_KEYS = ("is_memory_estimated", "inherited")
CHIP_KEYS = tuple(field.name for field in fields(Chip) if field.name not in NO_KEYS)


def _chip(row: _Row) -> Chip:
    row = _Row(row.path, row.value("name", str), row.values)
    row.only(CHIP_KEYS)
    source = row.value("source", str)
    sizes = [key for key in ("memory_bytes", "memory_label_bytes") if key in row.values]
    if not sizes:
        raise row.wrong("memory_bytes", "is missing (memory_label_bytes would do)")
    rate = "memory_bandwidth_bytes_per_s"
    chip = row.read(
        Chip,
        memory_bytes=row.value(sizes[0], int),
        is_memory_estimated=sizes[0] != "memory_bytes",
        achieved_bandwidth_bytes_per_s=row.achieved_rate("achieved_bandwidth_bytes_per_s", rate),
        peaks=_peaks(row, source),
        sources=_sources(row),
        inherited=MappingProxyType({}),
        node=row.below("node", source=source).read(Node) if "node" in row.values else None,
    )
    if chip.link and chip.link.mesh and chip.link.mesh not in MESHES:
        raise row.below("link").wrong("mesh", f"no such mesh; expected one of {', '.join(MESHES)}.")
    return chip


def _sources(row: _Row) -> Mapping[str, str]:
    if "sources" not in row.values:
        return MappingProxyType({})
    table = row.below("sources")
    table.only(CHIP_KEYS)
    return MappingProxyType({fact: table.value(fact, str) for fact in table.values})


def _peaks(row: _Row, source: str) -> Mapping[str, Peak]:
    if "peaks" not in row.values:
        raise row.wrong("peaks", "is missing: a table of dense peaks in FLOP/s, by torch dtype")
    table = row.below("peaks")
    table.only(PEAK_DTYPES)
    return MappingProxyType({dtype: _peak(table, dtype, source) for dtype in table.values})


def _peak(table: _Row, dtype: str, source: str) -> Peak:
    """A peak given as a plain number, or as a table where there is more to say."""
    if not isinstance(table.values[dtype], dict):
        return Peak(table.value(dtype, float), source)
    row = table.below(dtype, source=source)
    achieved = row.achieved_rate("achieved_flop_per_s", "flop_per_s")
    if achieved is not None:
        row.value("achieved_source", str)
    peak = row.read(Peak, achieved_flop_per_s=achieved)
    dense, sparse = peak.flop_per_s, peak.sparse_flop_per_s
    if sparse is not None and abs(sparse / dense - 2) > 0.02:
        raise row.wrong(
            "sparse_flop_per_s",
            f"{sparse:g} is not twice flop_per_s = {dense:g}, which is the dense rate",
        )
    return peak


DATE = re.compile(r"\d{4}(-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?)?")


def _price(row: _Row, key: str) -> Price:
    """One offer, or a list of them."""
    value = row.values[key]
    if not isinstance(value, list):
        return Price((_offer(row.below(key)),))
    if not value or not all(isinstance(item, dict) for item in value):
        raise row.wrong(key, f"expected a table or a list of tables, found {value!r}")
    places = (f"{row.place}: {key} {at}" for at in range(1, len(value) + 1))
    offers = [
        _offer(_Row(row.path, place, item)) for place, item in zip(places, value, strict=True)
    ]
    return Price(tuple(offers))


def _offer(row: _Row) -> Offer:
    offer = row.read(Offer)
    if not DATE.fullmatch(offer.as_of):
        raise row.wrong("as_of", f"expected a day as in 2026-06-30, or 2026, found {offer.as_of!r}")
    return offer
