"""Arguments: those of `tally run` from among the script's, and what values they may have."""

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from torchtally.errors import UsageError
from torchtally.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchtally.views.money import Extent, Until


Number = TypeVar("Number", int, float)


class RunParser(argparse.ArgumentParser):
    """Takes its own options from among the script's; what is left is the script's."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        ours, theirs = self.split(list(args if args is not None else sys.argv[1:]))
        namespace, _ = super().parse_known_args(ours, namespace)
        namespace.script = theirs.pop(0) if theirs and namespace.module is None else None
        namespace.script_arguments = theirs
        return namespace, []

    def split(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """(tally's own arguments, the script and its arguments)."""
        ours: list[str] = []
        theirs: list[str] = []
        given: set[str] = set()
        rest = iter(args)
        for arg in rest:
            has_started = bool(theirs) or "-m" in given
            option = self.own_option(arg, has_started)
            if arg == "--":
                theirs += rest
            elif option is not None:
                if not isinstance(self._option_string_actions[option], argparse._AppendAction):
                    self.check_once(option, given)
                ours.append(arg)
                if arg == option and self._option_string_actions[option].nargs is None:
                    ours += islice(rest, 1)
            elif has_started or not arg.startswith("-") or arg == "-":
                theirs.append(arg)
            else:
                self.error(
                    f"unrecognized arguments: {arg}\n"
                    "Options of the script go behind it: tally run [options] SCRIPT [ARGS ...]"
                )
        return ours, theirs

    def own_option(self, arg: str, has_started: bool) -> str | None:
        """The option of ours that an argument is, written as `--name`, `--name=value`, `-ovalue`.

        Behind the script, -h and -m are the script's, and so is anything like `-optimizer`.
        """
        name = arg.split("=", 1)[0] if arg.startswith("--") or has_started else arg[:2]
        if name not in self._option_string_actions:
            return None
        return None if has_started and name in ("-h", "--help", "-m") else name

    def check_once(self, option: str, given: set[str]) -> None:
        """The second time is probably meant for the script, and must not undo the first."""
        if option in given:
            self.error(
                f"{option} is given twice\n"
                f"One that is meant for the script goes behind --: SCRIPT -- {option} ..."
            )
        given.add(option)


def positive(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 10**9):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of steps, 1 or more")
    return int(text)


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return value


TIME_UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
MOST = 10**24
"""Steps, seconds or tokens: enough for anybody, and far from what overflows."""
MOST_FLOPS = 10**40


def until(text: str) -> "Until":
    """How long to train: "600000" steps, "24h" or "3.5d" of wall time, "15T-tokens"."""
    from torchtally.views.money import Extent, Until

    wall_s = _wall_s(text)
    for length in (_steps_or_tokens(text), wall_s and (wall_s, Extent.SECONDS)):
        if length and 0 < length[0] < MOST:
            return Until(*length)
    raise argparse.ArgumentTypeError(
        f"{text!r} is no length of a training. These work: 600000 (steps), 24h or 3.5d (also "
        "s, min, w), 15T-tokens"
    )


def _steps_or_tokens(text: str) -> "tuple[float, Extent] | None":
    from torchtally.views.money import Extent

    match = re.fullmatch(r"(.*?)[\s-]*(steps?|tokens?)?", text.strip())
    assert match is not None
    try:
        count = parse_count(match[1])
    except UsageError:
        return None
    return count, Extent.TOKENS if (match[2] or "").startswith("token") else Extent.STEPS


def _wall_s(text: str) -> float | None:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", text.strip(), re.ASCII)
    if match is None or match[2] not in TIME_UNITS_S:
        return None
    return float(match[1]) * TIME_UNITS_S[match[2]]


def duration(text: str) -> float:
    """Seconds of "30d", "24h", "90min", "2w" or "3600s"."""
    wall_s = _wall_s(text)
    if wall_s is None or not 0 < wall_s < MOST:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no length of time. These work: 30d, 24h, 90min, 2w, 3600s"
        )
    return wall_s


def usd(text: str) -> float:
    """Money from "1M", "$250K", "1e6" or "5000"."""
    amount = parsed(parse_count)(text.strip().removeprefix("$"))
    if amount <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no budget. These work: 1M, $250K, 5000")
    return float(amount)


def parsed(parse: "Callable[[str], Number]") -> "Callable[[str], Number]":
    """A reader of `units`, whose complaint argparse prints with the option's name."""

    def read(text: str) -> "Number":
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return read


def positive_count(text: str) -> int:
    """A whole number above zero, as people write it: "70B", "4096"."""
    count = parsed(parse_count)(text)
    if not 0 < count < MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 (and below 1e24)")
    return count


def flop_count(text: str) -> int:
    """FLOPs of a whole training: "3e24", "6.3e24"."""
    count = parsed(parse_count)(text)
    if not 0 < count < MOST_FLOPS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of FLOPs above 0: 3e24")
    return count


def positive_rate(text: str) -> float:
    """A rate above zero: "400K", "0.5"."""
    try:
        rate = float(text)
    except ValueError:
        rate = float(positive_count(text))
    if not 0 < rate < MOST:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate above 0")
    return rate


def price(text: str) -> tuple[str, float]:
    """(chip, USD per hour) of "2.49" (no chip is named) or "H200=2.49"."""
    name, _, amount = text.rpartition("=")
    try:
        usd_per_hour = float(amount.strip().removeprefix("$"))
    except ValueError:
        usd_per_hour = 0.0
    if not 0 < usd_per_hour < 1e6 or ("=" in text and not name.strip()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no price of a GPU for an hour. These work: 2.49, or for one of several "
            "chips H200=2.49"
        )
    return name.strip(), usd_per_hour
