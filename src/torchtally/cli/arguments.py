"""The arguments of `tally run`: ours from among the script's, and what their values may be."""

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any


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
        seen: set[str] = set()
        rest = iter(args)
        for arg in rest:
            has_started = bool(theirs) or "-m" in seen
            option = self.own_option(arg, has_started)
            if arg == "--":
                theirs += rest
            elif option is not None:
                if not isinstance(self._option_string_actions[option], argparse._AppendAction):
                    self.check_once(option, seen)
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

    def check_once(self, option: str, seen: set[str]) -> None:
        """The second time is probably meant for the script, and must not undo the first."""
        if option in seen:
            self.error(
                f"{option} is given twice\n"
                f"One that is meant for the script goes behind --: SCRIPT -- {option} ..."
            )
        seen.add(option)


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
