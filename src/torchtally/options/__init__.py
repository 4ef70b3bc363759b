"""Options of a command, each declared once: as a field of the record of what is asked.

    deadline_s: float | None = option("--deadline", GOAL, "30d, 24h, 2w", TIME)

is the option in the parser, its line in the help and in the documents, the value in the record, and
the refusal by what does not depend on it. The field's default is that of the command and of the
library alike.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from torchtally.errors import UsageError, did_you_mean
from torchtally.units import (
    parse_bytes,
    parse_count,
    parse_fraction,
    parse_number,
    parse_seconds,
    parse_token_length,
    parse_usd,
)

MOST = 10**24
"""Steps, seconds or tokens: enough for anybody, and far from what overflows."""
MOST_FLOPS = 10**40

T = TypeVar("T")
Value = TypeVar("Value", bound=str)


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """A section of the help. No title: the command's own options."""

    title: str = ""
    asked_by: str = ""
    """The field that makes the others mean something."""
    remedy: str = ""
    """What is said of the others without it: "an option of adapters: add --lora 16"."""


OWN = OptionGroup()


@dataclass(frozen=True, slots=True)
class Form:
    """How the value of an option is written, and read. `read` raises UsageError."""

    metavar: str
    read: Callable[[str], Any] = str


@dataclass(frozen=True, slots=True)
class Option:
    """What a command takes for a field. Without a form or choices: a switch."""

    name: str
    """"--deadline", or "MODEL" of an argument without a name."""
    group: OptionGroup
    help: str = ""
    form: Form | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)
    """Values by what is typed."""
    alias: str = ""
    nargs: str = ""
    """As argparse has it: "?" may be left out, "*": all words that have no name, "...": what is
    left."""
    left_out: str = "-"
    """The value of an option that is given without one: stdout."""
    is_required: bool = False
    turns_off: bool = False
    """A switch that makes its field False."""
    is_checked: bool = True
    """An answer that does not depend on it refuses it. False: it names the question, or is of what
    becomes of the answer."""
    is_repeated: bool = False
    """Given several times: a tuple."""
    is_written: bool = False
    """The value is a file that the command writes."""
    makes_folder: bool = False
    """The command makes the folder that it lies in, or writes one."""

    def value(self, typed: Any) -> Any:
        """The field's value, of what the parser has read."""
        return self.choices[typed] if self.choices else typed


@dataclass(frozen=True, kw_only=True)
class OptionRecord:
    """What a command is asked."""

    given: tuple[str, ...] = ()
    """The options that were typed, by field, in the order of the help."""


def option(
    name: str,
    group: OptionGroup,
    help: str = "",
    form: Form | None = None,
    *,
    default: Any = None,
    **more: Any,
) -> Any:
    """A field of a record with its option; a switch is False where it is not given, and where it
    turns off, True.
    """
    declared = Option(name, group, help, form, **more)
    if form is None and not declared.choices:
        default = declared.turns_off
    elif declared.is_repeated and default is None:
        default = ()
    return field(default=default, metadata={"option": declared})


def own(name: str, help: str = "", form: Form | None = None, **more: Any) -> Any:
    """A field of a record with an option of no section."""
    return option(name, OWN, help, form, **more)


def output(help: str, form: Form | None = None, **more: Any) -> Any:
    """A field of a record with the option -o: a file that the command writes."""
    return own("-o", help, form or FILE, alias="--output", is_written=True, **more)


def each(*values: Value) -> dict[str, Value]:
    """Choices that stand for themselves."""
    return {str(value): value for value in values}


def options_of(record: type[Any]) -> dict[str, Option]:
    """The options that a record's fields declare, by field, in the order of the help: its own,
    then those of the records that it extends.
    """
    declared = {field.name: field.metadata.get("option") for field in fields(record)}
    of_classes = (getattr(each, "__annotations__", {}) for each in record.__mro__)
    names = dict.fromkeys(name for of_class in of_classes for name in of_class)
    return {name: option for name in names if (option := declared.get(name)) is not None}


def documented(record: type[T]) -> type[T]:
    """The record with its options in its docstring."""
    lines = (
        f"    {field}: {option.help} ({option.name})"
        for field, option in options_of(record).items()
    )
    record.__doc__ = "\n".join((f"{record.__doc__}\n\nFields, and their options:", *lines))
    return record


def above_zero(parse: Callable[[str], T], below: float = MOST) -> Callable[[str], T]:
    """A reader of numbers above zero, and below what overflows."""

    def read(text: str) -> T:
        number: Any = parse(text)
        if not 0 < number < below:
            raise UsageError(f"{text!r} is not above 0 (and below {below:g})")
        return number  # type: ignore[no-any-return]

    return read


def among(named: Mapping[str, T]) -> Callable[[str], T]:
    """A reader of names: the value that one stands for."""

    def read(text: str) -> T:
        if text not in named:
            raise UsageError(f"{text!r} is unknown. {did_you_mean(text, named)}")
        return named[text]

    return read


def one_of(names: Callable[[], Iterable[str]]) -> Callable[[str], str]:
    """A reader of names that are looked up only when one is given."""

    def read(text: str) -> str:
        return among({name: name for name in names()})(text)

    return read


def byte_rate(text: str) -> int:
    """Bytes per second of "20GB/s"."""
    amount = parse_bytes(text.strip().removesuffix("/s"))
    if not amount or not text.strip().endswith("/s"):
        raise UsageError(f"{text[:40]!r} is not bytes per second. These work: 20GB/s, 800MB/s.")
    return amount


positive_count = above_zero(parse_count)
sequence_length = above_zero(parse_token_length)
flop_count = above_zero(parse_count, MOST_FLOPS)
positive_rate = above_zero(parse_number)
usd = above_zero(parse_usd)
duration = above_zero(parse_seconds)

COUNT = Form("N", positive_count)
LENGTH = Form("N", sequence_length)
RATE = Form("N", positive_rate)
SHARE = Form("SHARE", parse_fraction)
TIME = Form("TIME", duration)
USD = Form("USD", usd)
CHIPS = Form("CHIPS")
BANDWIDTH = Form("RATE", byte_rate)
FILE = Form("FILE")
CHIP = Form("NAME")
