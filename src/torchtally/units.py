"""Numbers as people write them: the one place, besides renderers, where GiB, TFLOP/s and ms exist.

Everywhere else FLOPs and bytes are ints, speeds are FLOP/s and bytes/s, times are seconds.

    format_bytes        1.50 GiB        binary, as memory is sold to a program
    format_label_bytes  80 GB           decimal, as a chip's label has it
    format_byte_per_s   3.35 TB/s       decimal, as bandwidth is printed in datasheets
    format_flops        6.30 TFLOPs     work
    format_flop_per_s   989.40 TFLOP/s  speed
    format_seconds      1.20 ms
    format_energy       3.50 kWh        from joules
    format_count        124.44 M        parameters, tokens
    format_fraction     43.1 %
    format_usd          $1.84 M

A formatted number has two decimals, or as many as fit six characters (five for durations), so that
columns stay narrow. What outgrows the largest unit is written in scientific notation.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from typing import Any

from torchtally.errors import UsageError


class Unit(StrEnum):
    """The unit of a number, or the kind of a text.

    A renderer picks the prefix (GiB, TFLOPs) and the alignment.
    """

    FLOPS = "FLOPs"
    BYTES = "bytes"
    COUNT = "count"
    PARAMETERS = "parameters"
    TOKENS = "tokens"
    STEPS = "steps"
    CHIPS = "chips"
    NUMBER = "number"
    """A factor or a ratio, of nothing."""
    TIMES = "times"
    """A measured ratio: as many digits as it is worth."""
    VALUE = "value"
    """What a number format holds: nine digits, which tell any two float32 apart."""
    FRACTION = "fraction"
    """Of one; a percentage to the reader."""
    BYTE_PER_S = "bytes/s"
    FLOP_PER_S = "FLOP/s"
    OP_PER_S = "op/s"
    """Of integers: the same rate, which is not one of floating point."""
    HERTZ = "Hz"
    TOKEN_PER_S = "tokens/s"
    FLOPS_PER_TOKEN = "FLOPs/token"
    BYTES_PER_PARAMETER = "bytes/parameter"
    BYTES_EACH = "bytes each"
    """Of one number, of one token id."""
    BYTES_PER_TOKEN = "bytes/token"
    LOSS = "loss"
    """In nats a token, where it is a cross-entropy."""
    SECONDS = "seconds"
    HOURS = "hours"
    JOULES = "joules"
    WATTS = "watts"
    USD = "USD"
    USD_PER_HOUR = "USD/h"
    NAME = "name"
    """A short name of our own: stands first and is never cut."""
    WORD = "word"
    """A short one of our own that stands where it is and is never cut."""
    PLACE = "place"
    """A path, possibly with a line number: the end says most."""
    LINE = "line"
    """A line of code as "train.py:41", which documents split into `file` and `line`."""
    TEXT = "text"
    """Source code or a name: the beginning says most."""
    BAR = "bar"
    """A quantity drawn in letters: stands where it is and is never cut."""

    @property
    def is_text(self) -> bool:
        return self in TEXTS

    @property
    def is_code(self) -> bool:
        """Spelled by the user or by torch; may be long."""
        return self in (Unit.PLACE, Unit.LINE, Unit.TEXT)

    @property
    def is_whole(self) -> bool:
        """Counted in ints: a FLOP, a byte, a parameter is there or it is not."""
        return self in WHOLE


TEXTS = (Unit.NAME, Unit.WORD, Unit.PLACE, Unit.LINE, Unit.TEXT, Unit.BAR)
WHOLE = (Unit.FLOPS, Unit.BYTES, Unit.COUNT, Unit.PARAMETERS, Unit.TOKENS, Unit.CHIPS)

Rung = tuple[float, str]
"""How much one of it is, and its name. A ladder of units goes from small to large."""

SI = ("", "K", "M", "G", "T", "P", "E", "Z", "Y")
BYTES: Sequence[Rung] = [
    (1024**power, f"{prefix}iB" if prefix else "B") for power, prefix in enumerate(SI)
]
BYTE_PER_S: Sequence[Rung] = [(1000**power, f"{prefix}B/s") for power, prefix in enumerate(SI)]
FLOPS: Sequence[Rung] = [(1000**power, f"{prefix}FLOPs") for power, prefix in enumerate(SI)]
FLOP_PER_S: Sequence[Rung] = [(1000**power, f"{prefix}FLOP/s") for power, prefix in enumerate(SI)]
COUNT: Sequence[Rung] = [(1, ""), (1e3, "K"), (1e6, "M"), (1e9, "B"), (1e12, "T")]
SECONDS: Sequence[Rung] = [
    (1e-9, "ns"),
    (1e-6, "us"),
    (1e-3, "ms"),
    (1, "s"),
    (60, "min"),
    (3600, "h"),
    (86400, "days"),
    (365.25 * 86400, "years"),
]
WATT_HOURS: Sequence[Rung] = [
    (1000**power, f"{prefix}Wh") for power, prefix in enumerate(("u", "m", "", "k", *SI[2:5]), -2)
]


def format_bytes(n: int) -> str:
    """Bytes in binary units: "512 B", "1.50 GiB"."""
    return _in_units(n, BYTES)


def format_label_bytes(n: int) -> str:
    """Memory as a chip's label has it, in decimal units: "80 GB"."""
    return f"{n / 1e9:.3g} GB"


def format_byte_per_s(speed: float) -> str:
    """Bytes per second in decimal units, as datasheets print bandwidth: "3.35 TB/s"."""
    return _in_units(speed, BYTE_PER_S)


def format_flops(n: int) -> str:
    """An amount of work: "6.30 TFLOPs"."""
    return _in_units(n, FLOPS)


def format_flop_per_s(speed: float) -> str:
    """A speed: "989.40 TFLOP/s"."""
    return _in_units(speed, FLOP_PER_S)


def format_count(n: int) -> str:
    """Parameters or tokens, B for 1e9: "124.44 M", "70.00 B", "12"."""
    return _in_units(n, COUNT)


def format_rate(per_s: float) -> str:
    """Rate of anything countable, in a second."""
    return format_count(round(per_s)) if per_s >= 1000 else f"{per_s:.3g}"


def format_seconds(seconds: float) -> str:
    """A duration: "1.20 ms", "3.50 min", "143.9 days"."""
    return _in_units(seconds, SECONDS, width=5)


def roughly(seconds: float) -> str:
    """The same to two digits: "44 ms", "1.2 s"."""
    rounded = float(f"{seconds:.1e}")
    number, _, unit = format_seconds(rounded).partition(" ")
    return f"{float(number):g} {unit}"


def roughly_bytes(n: int) -> str:
    """Bytes to three digits: "11.7 GiB", "1020 MiB"."""
    number, _, unit = format_bytes(n).partition(" ")
    whole, _, _ = number.partition(".")
    return f"{float(number):.{max(3, len(whole))}g} {unit}"


def format_loss(loss: float) -> str:
    """Four significant digits: 10.82, 2.346, 0.1235, 1.235e-05; nan, inf."""
    if loss == 0 or not math.isfinite(loss):
        return f"{loss:.3f}"
    return f"{loss:#.4g}" if 0.01 <= abs(loss) < 999.95 else f"{loss:.3e}"


def format_energy(joules: float) -> str:
    """Joules in watt-hours, as electricity is sold: "3.50 kWh", "12.00 mWh"."""
    return _in_units(joules / 3600, WATT_HOURS)


def format_fraction(fraction: float) -> str:
    """A fraction of one as a percentage: 0.431 is "43.1 %"."""
    percent = 100 * fraction
    return f"{percent:.{1 if abs(percent) < 999.95 else 0}f} %"


def format_usd(usd: float) -> str:
    """Money, with K, M and B above a thousand dollars: "$3.99", "$1.84 M"; less than a cent with
    two digits: "$0.0018".
    """
    sign = "-" if usd < 0 else ""
    if 0 < abs(usd) < 0.005:
        return f"{sign}${abs(usd):.{1 - math.floor(math.log10(abs(usd)))}f}"
    amount = f"{abs(usd):.2f}" if abs(usd) < 999.995 else _in_units(abs(usd), COUNT)
    return f"{sign}${amount}"


FORMATS: Mapping[Unit, Callable[[Any], str]] = {
    Unit.FLOPS: format_flops,
    Unit.BYTES: format_bytes,
    Unit.COUNT: format_count,
    Unit.PARAMETERS: format_count,
    Unit.TOKENS: format_count,
    Unit.STEPS: lambda steps: f"{steps:.15g}",
    Unit.TIMES: lambda ratio: f"{ratio:.3g}",
    Unit.CHIPS: lambda count: f"{count:,}",
    Unit.NUMBER: lambda number: f"{number:.6g}",
    Unit.VALUE: lambda value: f"{value:.9g}",
    Unit.FRACTION: format_fraction,
    Unit.BYTE_PER_S: format_byte_per_s,
    Unit.FLOP_PER_S: format_flop_per_s,
    Unit.OP_PER_S: lambda speed: format_flop_per_s(speed).replace("FLOP/s", "op/s"),
    Unit.HERTZ: lambda hertz: f"{hertz / 1e9:.3f} GHz",
    Unit.TOKEN_PER_S: lambda rate: f"{format_count(round(rate))}/s",
    Unit.FLOPS_PER_TOKEN: lambda flops: f"{format_flops(flops)}/token",
    Unit.BYTES_PER_PARAMETER: lambda size: f"{size:.6g} B",
    Unit.BYTES_EACH: lambda size: f"{size:.6g} B",
    Unit.BYTES_PER_TOKEN: lambda size: f"{format_bytes(size)}/token",
    Unit.LOSS: format_loss,
    Unit.SECONDS: format_seconds,
    Unit.HOURS: lambda hours: f"{format_count(hours)} h",
    Unit.JOULES: format_energy,
    Unit.WATTS: lambda watts: f"{watts:.0f} W",
    Unit.USD: format_usd,
    Unit.USD_PER_HOUR: lambda usd: f"{format_usd(usd)}/h",
}


IN_PROSE: Mapping[Unit, Callable[[Any], str]] = {
    **FORMATS,
    Unit.FLOPS: lambda flops: (
        f"{flops:.3g} FLOPs".replace("e+", "e") if flops >= 1e18 else format_flops(flops)
    ),
    Unit.SECONDS: lambda seconds: _in_units(seconds, SECONDS),
    Unit.COUNT: lambda count: _small_or(format_count, count),
    Unit.PARAMETERS: lambda count: _small_or(format_count, count),
    Unit.TOKENS: lambda count: _small_or(format_count, count),
}
"""Where there is room: FLOPs of a whole training as papers print them, durations in six digits,
counts that a reader knows by heart (4096) in full."""


def _small_or(format_large: Callable[[int], str], count: int) -> str:
    return str(count) if count < 100_000 else format_large(count)


def format_number(number: float, unit: Unit) -> str:
    """A number in a sentence, with its unit where that does not go without saying.

    Raises KeyError for a unit of texts.
    """
    return IN_PROSE[unit](number)


def parse_bytes(text: str) -> int:
    """Bytes from "80GB" (1e9 each), "80GiB" (2**30 each), "80e9" or "512"; rounded down."""
    return int(_parse(text, PARSED_BYTES, "a size in bytes", "80GB, 80GiB, 81559 MiB or 80e9"))


def parse_count(text: str) -> int:
    """A whole number from "70B", "15T", "124.4M", "128Ki", "3e24" or "512"; B is 1e9, Ki 1024."""
    examples = "70B, 15T, 124.4M, 128Ki, 3e24 or 512"
    count = _parse(text, PARSED_COUNT, "a count", examples)
    if count.denominator != 1:
        raise UsageError(f"{text!r} is not a whole number. These work: {examples}.")
    return int(count)


def parse_token_length(text: str) -> int:
    """Tokens of one sequence from "4096", "8K" or "128Ki" (131072), "1M" (2**20).

    K is 1024 and M is 1024 times that, as context lengths are named; 128000 is itself.
    """
    number = text.strip()
    has_prefix = number[-1:] in ("K", "k", "M", "m")
    return parse_count(f"{number[:-1]}{number[-1].upper()}i" if has_prefix else number)


def parse_number(text: str) -> float:
    """A number, with or without a prefix, from "400K", "0.5" or "3e-4"."""
    return float(_parse(text, PARSED_COUNT, "a number", "400K, 0.5 or 3e-4"))


def parse_fraction(text: str) -> float:
    """A fraction of one from "0.4" or "40%"."""
    fraction = _parse(text, PARSED_FRACTION, "a fraction", "0.4 or 40%")
    if fraction > 1:
        raise UsageError(f"{text!r} is not between 0 and 1. These work: 0.4 or 40%.")
    return float(fraction)


def parse_seconds(text: str) -> float:
    """Seconds from "24h", "90min", "30d", "2w", "1mo", "3600s", "200ms"; a month is 1/12 year."""
    examples = "30d, 24h, 90min, 2w, 1mo, 3600s or 200ms"
    return float(_parse(text, PARSED_SECONDS, "a length of time", examples))


def parse_usd(text: str) -> float:
    """US dollars from "$1.5M", "250K", "1e6" or "2.49"."""
    amount = text.strip().removeprefix("$")
    return float(_parse(amount, PARSED_COUNT, "an amount of US dollars", "$1.5M, 250K or 2.49"))


def parse_flop_per_s(text: str) -> float:
    """FLOP/s from "989.5TFLOP/s", "1.98 PFLOP/s" or "989.5e12"."""
    examples = "989.5TFLOP/s, 1.98 PFLOP/s or 989.5e12"
    return float(_parse(text, PARSED_FLOP_PER_S, "a speed in FLOP/s", examples))


def _in_units(amount: float, ladder: Sequence[Rung], *, width: int = 6) -> str:
    """The amount in the largest unit that it fills once rounded, its digits in `width` characters.

    Zero, infinities and what outgrows the ladder are written in the plain unit.
    """
    plain = next(unit for size, unit in ladder if size == 1)
    if amount == 0 or not math.isfinite(amount):
        return f"{amount:.0f} {plain}".rstrip()
    sign, amount = ("-", -amount) if amount < 0 else ("", amount)
    size, unit = ladder[0]
    for next_size, next_unit in ladder[1:]:
        if float(_digits(amount / size, width)) < next_size / size:
            break
        size, unit = next_size, next_unit
    is_exact = isinstance(amount, int) and size == 1
    number = f"{amount}" if is_exact else _digits(amount / size, width)
    if len(number) > width:
        number, unit = f"{amount:.2e}", plain
    return f"{sign}{number} {unit}".rstrip()


def _digits(value: float, width: int) -> str:
    """Two decimals, or as many as fit the width; none at all may still be too wide."""
    for decimals in (2, 1):
        if len(text := f"{value:.{decimals}f}") <= width:
            return text
    return f"{value:.0f}"


NUMBER = re.compile(
    r"(?P<number>\d+(\.\d*)?|\.\d+)(e(?P<power>[+-]?\d{1,2}))?\s*(?P<unit>\D*)", re.I | re.A
)

MOST = 10**100
"""More than anybody means, and still a float."""
MOST_CHARACTERS = 200
"""Of a number: Python refuses to read one of more than 4300 digits."""

PARSED_BYTES: Mapping[str, Fraction] = {
    "": Fraction(1),
    "B": Fraction(1),
    "kB": Fraction(1000),
    **{f"{prefix}B": Fraction(1000**power) for power, prefix in enumerate(SI)},
    **{f"{prefix}iB": Fraction(1024**power) for power, prefix in enumerate(SI) if prefix},
}
PARSED_COUNT: Mapping[str, Fraction] = {
    **{name.upper(): Fraction(int(size)) for size, name in COUNT},
    **{name.lower(): Fraction(int(size)) for size, name in COUNT},
    **{f"{prefix}i": Fraction(1024**power) for power, prefix in enumerate(SI) if prefix},
}
PARSED_FRACTION: Mapping[str, Fraction] = {"": Fraction(1), "%": Fraction(1, 100)}
PARSED_SECONDS: Mapping[str, Fraction] = {
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
    "w": Fraction(7 * 86400),
    "mo": Fraction(86400 * 36525, 1200),
    "y": Fraction(86400 * 36525, 100),
}
PARSED_FLOP_PER_S: Mapping[str, Fraction] = {
    "": Fraction(1),
    **{f"{prefix}FLOP/s": Fraction(1000**power) for power, prefix in enumerate(SI)},
    **{f"{prefix}FLOPS": Fraction(1000**power) for power, prefix in enumerate(SI)},
}


def _parse(text: str, units: Mapping[str, Fraction], kind: str, examples: str) -> Fraction:
    """The exact amount that `text` says. Units are spelled exactly: Gb is an eighth of GB."""
    if len(text) > MOST_CHARACTERS:
        raise UsageError(f"{text[:20]}... is not {kind}. These work: {examples}.")
    match = NUMBER.fullmatch(text.strip())
    unit = match["unit"].strip() if match else ""
    if match is None or unit not in units:
        raise UsageError(f"{text!r} is not {kind}. These work: {examples}.")
    amount = Fraction(match["number"]) * Fraction(10) ** int(match["power"] or 0) * units[unit]
    if amount > MOST:
        raise UsageError(f"{text[:20]}... is too large. These work: {examples}.")
    return amount
