"""What is varied: an argument of the script, a variable of the environment, or a fix."""

import re
import shlex
from dataclasses import dataclass
from enum import StrEnum

from torchtally.errors import UsageError
from torchtally.fit.argument import HOLE, Argument

Settings = tuple[str, ...]
"""A value for each knob, in their order."""

BRACES = re.compile(r"\{([^{}]*)\}")
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
RANGE = re.compile(r"(\d+)\.\.(\d+)")
OFF, ON = "off", "on"
LARGEST = 1 << 20
"""Of the powers of two that an open knob takes."""


class KnobKind(StrEnum):
    """What a knob changes."""

    ARGUMENT = "argument"
    VARIABLE = "variable"
    FIX = "fix"


@dataclass(frozen=True, slots=True)
class Knob:
    """Something with several values."""

    kind: KnobKind
    argument: Argument
    """With a hole for the value; of a fix its name alone."""
    values: tuple[str, ...] = ()
    """None: powers of two, as far as memory goes."""

    @property
    def is_open(self) -> bool:
        """Its values are found by the search."""
        return not self.values

    @property
    def first(self) -> str:
        return self.values[0] if self.values else "1"

    @property
    def is_number(self) -> bool:
        """Values have an order, and are tried from one to the next."""
        return all(value.isdecimal() for value in self.values)

    def neighbours(self, value: str) -> tuple[str, ...]:
        """Values that are one change away: of numbers the next ones, the larger first."""
        if self.is_open:
            number = int(value)
            near = (2 * number, number // 2)
            return tuple(str(each) for each in near if 1 <= each <= LARGEST)
        if not self.is_number:
            return tuple(each for each in self.values if each != value)
        ordered = sorted(self.values, key=int)
        place = ordered.index(value)
        return tuple(ordered[at] for at in (place + 1, place - 1) if 0 <= at < len(ordered))

    def text(self, value: str) -> str:
        """The setting as it is typed; "" where there is nothing to type."""
        if self.kind is KnobKind.FIX:
            return self.argument.name if value == ON else ""
        if self.kind is KnobKind.VARIABLE and not value:
            return ""  # it is not set
        return shlex.join(self.argument.with_value(value))


def fix_knob(name: str) -> Knob:
    """A fix of the catalogue, left out or applied."""
    return Knob(KnobKind.FIX, Argument((name,)), (OFF, ON))


def parse_knob(text: str) -> Knob:
    """The knob of a --vary. Raises UsageError."""
    holes = BRACES.findall(text)
    words = tuple(shlex.split(BRACES.sub(HOLE, text))) if text.count("'") % 2 == 0 else ()
    if len(holes) != 1 or len(words) not in (1, 2):
        raise UsageError(
            f"--vary {text!r}: expected one argument of the script, or a variable of the "
            'environment, with values in braces: "--batch-size={}" (powers of two), '
            '"--batch-size={4..64}", "--dtype={bfloat16,float16}", "{,--compile}", '
            '"PYTORCH_CUDA_ALLOC_CONF={,expandable_segments:True}".'
        )
    argument = Argument(words)
    is_variable = len(words) == 1 and VARIABLE.fullmatch(words[0].partition("=")[0]) is not None
    kind = KnobKind.VARIABLE if is_variable and "=" in words[0] else KnobKind.ARGUMENT
    values = values_of(holes[0], text)
    return Knob(kind, argument, values)


def values_of(inside: str, text: str) -> tuple[str, ...]:
    """What stands between braces; nothing for powers of two. Raises UsageError."""
    if not inside:
        return ()
    if (match := RANGE.fullmatch(inside)) is not None:
        low, high = int(match[1]), int(match[2])
        if not 0 < low <= high <= LARGEST:
            raise UsageError(f"--vary {text!r}: expected 0 < low <= high in {{low..high}}.")
        values = [low]
        while 2 * values[-1] <= high:
            values.append(2 * values[-1])
        return tuple(map(str, values))
    listed = tuple(value.strip() for value in inside.split(","))
    if len(set(listed)) < len(listed):
        raise UsageError(f"--vary {text!r}: a value is there twice.")
    return listed


def settings_text(knobs: tuple[Knob, ...], settings: Settings) -> str:
    """Settings as they are typed, then the fixes: "--batch-size=8, checkpointed blocks"."""
    texts = [
        (knob.kind, text)
        for knob, value in zip(knobs, settings, strict=True)
        if (text := knob.text(value))
    ]
    typed = " ".join(text for kind, text in texts if kind is not KnobKind.FIX)
    fixes = [text for kind, text in texts if kind is KnobKind.FIX]
    return ", ".join([*([typed] if typed else []), *fixes]) or "as it is"
