"""The argument that is varied: `--batch_size={}`, put among the script's own."""

import shlex
from dataclasses import dataclass

from torchtally.errors import UsageError

HOLE = "{}"


@dataclass(frozen=True, slots=True)
class Argument:
    """One or two words with a hole for the value."""

    words: tuple[str, ...]

    @property
    def name(self) -> str:
        """What comes before the value: "--batch_size" of "--batch_size={}"; "" of "{}" alone."""
        first = self.words[0]
        return first.split("=", 1)[0] if HOLE not in first or "=" in first else ""

    def with_value(self, value: int | str) -> tuple[str, ...]:
        """Its words; one that is nothing but an empty value is left out."""
        words = (word.replace(HOLE, str(value)) for word in self.words)
        return tuple(word for word in words if word)

    def among(self, arguments: tuple[str, ...], value: int | str) -> tuple[str, ...]:
        """The script's arguments with this one in place of its own of the same name, or last."""
        place, length = self.own(arguments)
        return arguments[:place] + self.with_value(value) + arguments[place + length :]

    def own(self, arguments: tuple[str, ...]) -> tuple[int, int]:
        """(place, how many words) of the script's own argument of this name; (end, 0) for none."""
        for place, word in enumerate(arguments if self.name else ()):
            if word.startswith(f"{self.name}="):
                return place, 1
            if word == self.name and place + 1 < len(arguments):
                return place, 2
        return len(arguments), 0


def parse(text: str) -> Argument:
    """Argument of --vary. Raises UsageError."""
    words = tuple(shlex.split(text))
    if len(words) not in (1, 2) or sum(word.count(HOLE) for word in words) != 1:
        raise UsageError(
            f"--vary {text!r}: expected one argument of the script with {HOLE} for the value, "
            'as in --vary "--batch_size={}" or --vary "--seq-len {}".'
        )
    return Argument(words)
