"""Chips: what each one promises, and where each number comes from.

The table is `hardware.toml`, beside this file; users may add chips of their own in the same form.
Two rules hold everywhere. A peak is dense: a rate with sparsity is recorded beside it and never
used. And an unknown chip, or a number that no source gives, is an error: no chip stands in for
another.

    chip("H100-SXM").peak_flop_per_s("bfloat16")    989.4e12
    chip(torch.cuda.get_device_name())              by what the driver calls it
    cluster("1024xH100-SXM").count                  1024
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from torchtally.errors import UnknownChipError, UnsupportedError, UsageError

TABLE = Path(__file__).with_name("hardware.toml")

PEAK_DTYPES = (
    "float64",
    "float64_vector",
    "float32",
    "tf32",
    "float16",
    "float16_accumulate_float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fn_accumulate_float16",
    "float8_e4m3fnuz",
    "float4_e2m1fn_x2",
    "int8",
)
"""What a peak can be given for: torch's dtypes of the inputs, and four that torch has no name for.

Sums are kept in float32. "tf32" is float32 inputs with TF32 allowed. "float64" is the matrix unit
where there is one, "float64_vector" is without it. "..._accumulate_float16" is the faster rate
that GeForce keeps for sums in half precision.
"""

SAME_RATE = {"float8_e5m2": "float8_e4m3fn", "float8_e5m2fnuz": "float8_e4m3fnuz"}
"""Both 8-bit formats go through the same multipliers, so one number serves both."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A promised dense rate, in FLOP/s (operations per second for int8)."""

    flop_per_s: float
    source: str
    sparse_flop_per_s: float | None = None
    """The rate with 2:4 sparsity, where the vendor prints that one: twice the dense rate."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """A way out of the chip. Speeds are per direction; vendors often print the sum of both."""

    name: str
    bytes_per_s_per_direction: float | None = None


@dataclass(frozen=True, slots=True)
class Price:
    """One offer for one chip, from one seller on one day: not the market."""

    usd_per_hour: float
    source: str
    as_of: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What torch.cuda.get_device_properties says, by torch's names. None: no source gives it."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int | None
    L2_cache_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """One accelerator as PyTorch sees one device. What no source gives is None or absent."""

    name: str
    vendor: str
    architecture: str
    memory_bytes: int
    """Total memory as the driver's tool shows it; the label's figure if `is_memory_estimated`."""
    memory_bandwidth_bytes_per_s: float
    peaks: Mapping[str, Peak] = field(hash=False)
    source: str
    """Where every number comes from, but for those in `sources`."""
    sources: Mapping[str, str] = field(hash=False, default_factory=dict)
    """Field name to source, for numbers that come from somewhere else."""
    aliases: tuple[str, ...] = ()
    driver_names: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    l2_cache_bytes: int | None = None
    program_memory_bytes: int | None = None
    """What a program is told it has: less than `memory_bytes` by what the driver keeps."""
    memory_label_bytes: int | None = None
    memory_type: str = ""
    is_memory_estimated: bool = False
    link: Link | None = None
    host_link: Link | None = None
    tdp_watts: float | None = None
    price: Price | None = None
    note: str = ""

    @property
    def device_name(self) -> str:
        """The full name, as the driver and torch.cuda.get_device_name report it."""
        return self.driver_names[0] if self.driver_names else self.name

    @property
    def total_memory_bytes(self) -> int:
        """What a program can have at most: torch's total_memory, as closely as it is known."""
        return self.program_memory_bytes or self.memory_bytes

    @property
    def properties(self) -> DeviceProperties:
        """The answer to torch.cuda.get_device_properties.

        Raises UnsupportedError for a chip that is not a CUDA device.
        """
        if self.compute_capability is None:
            raise UnsupportedError(
                f"{self.name} is not a CUDA device (no compute capability is known for it), "
                "so a script cannot ask for its CUDA properties. `tally gpus` lists those that are."
            )
        major, minor = self.compute_capability
        return DeviceProperties(
            name=self.device_name,
            major=major,
            minor=minor,
            total_memory=self.total_memory_bytes,
            multi_processor_count=self.multiprocessors,
            L2_cache_size=self.l2_cache_bytes,
        )

    def peak(self, dtype: str) -> Peak:
        """The dense peak for products of this dtype, spelled as torch does ("torch." may lead).

        Raises UsageError when the chip has no such number, as for bfloat16 on a V100.
        """
        plain = dtype.removeprefix("torch.")
        peak = self.peaks.get(SAME_RATE.get(plain, plain))
        if peak is None:
            raise UsageError(
                f"{self.name} has no peak for {plain}: its hardware has no such unit, or no source "
                f"gives the rate. It has {', '.join(sorted(self.peaks)) or 'none'}."
            )
        return peak

    def peak_flop_per_s(self, dtype: str) -> float:
        """The dense peak in FLOP/s. Raises UsageError when the chip has no such number."""
        return self.peak(dtype).flop_per_s

    def source_of(self, fact: str) -> str:
        """Where the number in this field comes from."""
        return self.sources.get(fact, self.source)


@dataclass(frozen=True, slots=True)
class Cluster:
    """So many of one chip."""

    chip: Chip
    count: int = 1


# Looking up ---------------------------------------------------------------------------------------


def chips() -> tuple[Chip, ...]:
    """Every chip of the table, in its order."""
    return _table()


def chip(name: str, among: Sequence[Chip] | None = None) -> Chip:
    """The chip of this name, alias or driver name; case, spaces, "-" and "_" do not matter.

    The whole name must agree: "NVIDIA GeForce RTX 4090 Laptop GPU" is not an RTX 4090, a MIG slice
    is not an H100, and "A100" alone could be any of four. Of `among`, earlier ones win.

    Raises UnknownChipError with the near matches.
    """
    known = chips() if among is None else among
    wanted = _essence(name)
    for candidate in known:
        if wanted in _essences(candidate):
            return candidate
    raise UnknownChipError(_unknown(name, known))


def cluster(text: str, among: Sequence[Chip] | None = None) -> Cluster:
    """The chips that "1024xH100-SXM" names, or one of them for "H100-SXM".

    Raises UsageError for a count of zero and UnknownChipError for a chip that is not known.
    """
    match = re.fullmatch(r"(?:(\d+)\s*[xX×]\s*)?(.+)", text.strip())
    if match is None or (match[1] and int(match[1]) == 0):
        raise UsageError(f"{text!r} names no chips. These work: H100-SXM, 8xH100-SXM.")
    return Cluster(chip(match[2], among), int(match[1] or 1))


VENDOR_WORDS = ("nvidia", "tesla", "geforce", "amd", "instinct", "google", "aws", "intel", "apple")
"""Driver versions differ on these: "Tesla T4", "GeForce RTX 3090", "NVIDIA GeForce RTX 3090"."""


def _essence(name: str) -> str:
    """The name without case, spaces, dashes, underscores and leading vendor words."""
    essence = re.sub(r"[\s_-]", "", name).lower()
    while word := next((w for w in VENDOR_WORDS if essence.startswith(w) and essence != w), ""):
        essence = essence.removeprefix(word)
    return essence


@cache
def _essences(chip: Chip) -> frozenset[str]:
    return frozenset(map(_essence, (chip.name, *chip.aliases, *chip.driver_names)))


def _unknown(name: str, known: Sequence[Chip]) -> str:
    near = near_matches(name, known)
    guess = f" Did you mean {_either(near)}?" if near else ""
    return f"No chip is called {name!r}.{guess} `tally gpus` lists them all."


def near_matches(name: str, known: Sequence[Chip], limit: int = 5) -> tuple[str, ...]:
    """Names of chips that begin with this name, or else share all of it, or else resemble it."""
    wanted = _essence(name)
    if not wanted:
        return ()
    owner = {essence: chip.name for chip in known for essence in sorted(_essences(chip))}
    begins = [essence for essence in owner if essence.startswith(wanted)]
    contains = [essence for essence in owner if wanted in essence or essence in wanted]
    contains.sort(key=len, reverse=True)
    alike = get_close_matches(wanted, owner, n=limit, cutoff=0.6)
    nearest = begins or contains or alike
    return tuple(dict.fromkeys(owner[essence] for essence in nearest))[:limit]


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


# Loading ------------------------------------------------------------------------------------------


@cache
def _table() -> tuple[Chip, ...]:
    return load_chips(TABLE)


def load_chips(path: str | Path) -> tuple[Chip, ...]:
    """Chips of a TOML file in the form of `hardware.toml`.

    Raises UsageError naming the file, the chip and the key that is wrong.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as a table of chips: {error}") from error
    rows = document.get("chip")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: holds no chips. Each begins with a line [[chip]].")
    loaded = tuple(_chip(_Row(str(path), f"chip {at}", row)) for at, row in enumerate(rows, 1))
    _check_distinct(path, loaded)
    return loaded


def _check_distinct(path: Path, loaded: Sequence[Chip]) -> None:
    """No two chips of one file answer to the same name."""
    counts = Counter(essence for chip in loaded for essence in _essences(chip))
    for essence, count in counts.items():
        if count > 1:
            owners = [chip.name for chip in loaded if essence in _essences(chip)]
            raise UsageError(f"{path}: {' and '.join(owners)} all answer to {essence!r}.")


@dataclass(frozen=True, slots=True)
class _Row:
    """One TOML table, and where it stands, for messages."""

    path: str
    place: str
    values: Mapping[str, Any]

    def wrong(self, key: str, complaint: str) -> UsageError:
        return UsageError(f"{self.path}: {self.place}: {key}: {complaint}")

    def only(self, known: Sequence[str]) -> None:
        """Refuses keys that mean nothing, so that a misspelt one is not silently dropped."""
        for key in self.values:
            if key not in known:
                near = get_close_matches(key, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}."
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

    def whole_or_none(self, key: str) -> int | None:
        if key not in self.values:
            return None
        return int(self._positive(key, self.values[key], (int,), "a whole number above zero"))

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
        peaks=_peaks(row, source),
        source=source,
        sources=_sources(row),
        aliases=row.texts("aliases"),
        driver_names=row.texts("driver_names"),
        compute_capability=_compute_capability(row),
        multiprocessors=row.whole_or_none("multiprocessors"),
        l2_cache_bytes=row.whole_or_none("l2_cache_bytes"),
        link=_link(row.below("link")),
        host_link=_link(row.below("host_link")),
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
    return Peak(dense, row.text("source", source), sparse, row.text("note", ""))


def _link(row: _Row | None) -> Link | None:
    if row is None:
        return None
    row.only(tuple(f.name for f in fields(Link)))
    return Link(row.text("name"), row.number_or_none("bytes_per_s_per_direction"))


def _price(row: _Row | None) -> Price | None:
    if row is None:
        return None
    row.only(tuple(f.name for f in fields(Price)))
    return Price(
        usd_per_hour=row.number("usd_per_hour"),
        source=row.text("source"),
        as_of=row.text("as_of", ""),
        note=row.text("note", ""),
    )
