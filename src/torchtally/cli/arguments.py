"""The parsers of the command line: one style of help and errors, and one reader per kind of number.

A number is written alike in every command: 70B, 128Ki, 40%, 24h, 80GB, $1.5M (see `units`).
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from torchtally.cli.help_text import HelpFormatter
from torchtally.cli.streams import as_read, unwritable_as_error
from torchtally.errors import TallyError, UsageError, did_you_mean
from torchtally.files.reading import read_bytes
from torchtally.options import MOST, Form, OptionRecord, above_zero, own
from torchtally.units import parse_bytes, parse_count, parse_seconds, parse_usd

if TYPE_CHECKING:
    from torchtally.tracer.script_file import Script
    from torchtally.views.money import Extent, Until

Subparsers = Any
"""`argparse._SubParsersAction`, of parsers of our own."""


class Parser(argparse.ArgumentParser):
    """Prints errors as every command does: one line, then the remedy; exit code 2.

    An epilog may be a function: its text is made when help is asked for, not before.
    """

    HAS_SCRIPT: ClassVar = False
    """A script follows, which the value of an option that may be left out would be taken for."""

    def __init__(self, *args: Any, **options: Any) -> None:
        epilog = options.pop("epilog", None)
        options.setdefault("formatter_class", HelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)
        self._epilog = epilog

    def format_help(self) -> str:
        self.epilog = self._epilog() if callable(self._epilog) else self._epilog
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else args
        namespace, unknown = super().parse_known_args(list(map(self.spelled, given)), namespace)
        if unknown:
            option = unknown[0].partition("=")[0]
            if option.startswith("-"):
                self.error(f"unknown option {option}. {did_you_mean(option, self._options())}")
            self.error(f"unexpected argument {unknown[0]!r}")
        return namespace, []

    def error(self, message: str) -> NoReturn:
        """One line and its remedy, as for every other error."""
        remedy = "" if "\n" in message else f"\n`{self.prog} --help` lists what there is."
        self.exit(2, as_read(f"tally: error: {message}{remedy}") + "\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Help that cannot be printed is an error. argparse is silent about it."""
        if file is None or file is not sys.stdout:
            super()._print_message(message, file)
            return
        with unwritable_as_error():
            file.write(message)
            file.flush()

    def spelled(self, arg: str) -> str:
        """An argument with the option's name as the command has it: --gpu and --gpus are one."""
        name, mark, value = arg.partition("=")
        other = {"--gpu": "--gpus", "--gpus": "--gpu"}.get(name, name)
        is_other = name not in self._option_string_actions and other in self._option_string_actions
        return f"{other}{mark}{value}" if is_other else arg

    def _options(self) -> list[str]:
        return [option for option in self._option_string_actions if option.startswith("--")]

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """A value as its reader has it, whose complaint gets the option's name."""
        try:
            return super()._get_value(action, arg_string)
        except TallyError as error:
            raise argparse.ArgumentError(action, str(error)) from error

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if choices is None or value in choices:
            return
        is_command = isinstance(action, argparse._SubParsersAction)
        if is_command:
            self.error(f"unknown command {value!r}. {did_you_mean(str(value), choices)}")
        raise argparse.ArgumentError(
            action, f"{value!r} is unknown. {did_you_mean(str(value), map(str, choices))}"
        )


class TrainParser(Parser):
    """Takes the command's own options, CONFIG and `--key value` changes of the config in any order.

    Before CONFIG, the value of a key cannot be told from CONFIG by its place, so CONFIG must end
    in .toml there, or stand behind `--`.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(self.sort(args or []), namespace)

    def sort(self, args: Sequence[str]) -> list[str]:
        """The command's own options, then CONFIG, then the changes."""
        own: list[str] = []
        config: list[str] = []
        changes: list[str] = []
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                (changes if config else config).extend(islice(rest, 1))
                continue
            option = self._option_string_actions.get(arg.partition("=")[0])
            is_help = isinstance(option, argparse._HelpAction)
            if option is not None and not (is_help and config):  # behind CONFIG, help on its keys
                own.append(arg)
                if option.nargs is None and "=" not in arg:
                    own += islice(rest, 1)
            elif config or arg.startswith("-") or (changes and not arg.endswith(".toml")):
                changes.append(arg)
            else:
                config.append(arg)
        return [*own, *config, *changes]


NEAR = 0.85
"""How alike a misspelled option is: --asert and --assert share 14 of 15 letters."""
STARTS = ("-m", "-c")
"""Options after which a script's own arguments come, as behind a script."""


def is_chip(name: str) -> bool:
    """The name is one that --gpu takes: a script's own --gpu takes numbers."""
    from torchtally.chips import chip

    try:
        chip(name)
    except TallyError:
        return name.lower() == "cpu"
    return True


def is_option_of(script: str, option: str) -> bool:
    """The script itself has an option of ours: its text has the name as a string."""
    if not os.path.isfile(script):  # stdin, a pipe, a directory, or a mistake reported later
        return False
    try:
        text = read_bytes(script).decode(errors="replace")
    except OSError:  # not to be read, or too long for a script that a person has written
        return False
    return any(f"{quote}{option}{quote}" in text for quote in ("'", '"'))


READERS = re.compile(
    r"^\s*(import|from)\s+(argparse|optparse|getopt|absl|click|typer|fire|hydra|omegaconf|docopt|tyro|"
    r"tap|jsonargparse|simple_parsing|configargparse|plac|cyclopts|draccus|sacred)\b|"
    r"ArgumentParser|LightningCLI|\.parse_args|configurator",
    re.MULTILINE,
)
"""What reads a script's arguments in its place: each of them refuses an option that it lacks."""
LENIENT = re.compile(r"parse_known_args|ignore_unknown_options|sys\.argv|from sys import argv")
"""What lets an option pass that nothing asks for."""


def ignores_option(script: str, option: str) -> bool:
    """Whether a script runs on with an option that its text does not name; False where something
    that it imports, or a module of its own, may read arguments.
    """
    texts = texts_of(script)
    if texts is None:
        return False
    words = "|".join(re.escape(option.lstrip("-").replace("-", mark)) for mark in "-_")
    if any(re.search(rf"\b({words})\b", text) for text in texts):
        return False
    return any(map(LENIENT.search, texts)) or not any(map(READERS.search, texts))


def texts_of(script: str) -> list[str] | None:
    """The text of a script, and of the modules beside it that it imports; None where they are not
    to be read, or lie in packages.
    """
    texts: list[str] = []
    folder = os.path.dirname(script)
    pending, seen = [script], {script}
    while pending:
        try:
            text = read_bytes(pending.pop()).decode(errors="replace")
        except OSError:
            return None
        texts.append(text)
        for root in re.findall(r"^\s*(?:from|import)\s+(\w*)", text, re.MULTILINE):
            module = os.path.join(folder, f"{root}.py")
            if not root or os.path.isdir(os.path.join(folder, root)):
                return None
            if os.path.isfile(module) and module not in seen:
                seen.add(module)
                pending.append(module)
    return texts


def script_among(ours: Sequence[str], theirs: Sequence[str]) -> str | None:
    """The file that is run, as far as the arguments have been read; None where it is not known, as
    of a module that is installed. Behind a launcher it is the first file.
    """
    if is_launcher(ours, theirs):
        return next(filter(os.path.isfile, theirs), None)
    if "-m" in ours[:-1]:
        module = ours[ours.index("-m") + 1].replace(".", os.sep)
        files = (f"{module}.py", os.path.join(module, "__main__.py"))
        return next(filter(os.path.isfile, files), None)
    return theirs[0] if theirs and "-c" not in ours else None


def is_launcher(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """A launcher starts the script; what -- means is for it to say then."""
    from torchtally.tracer.launchers import launcher_of

    if "-m" in ours:
        return launcher_of(ours[ours.index("-m") + 1], is_module=True) is not None
    return bool(theirs) and launcher_of(theirs[0], is_module=False) is not None


class RunParser(Parser):
    """Takes its own options from among the script's; what is left is the script's."""

    HAS_SCRIPT: ClassVar = True

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        ours, theirs = self.split(list(args if args is not None else sys.argv[1:]))
        namespace, _ = argparse.ArgumentParser.parse_known_args(self, ours, namespace)
        is_named = "module" in namespace or "code" in namespace
        if theirs and not is_named:
            namespace.script = theirs.pop(0)
        namespace.script_arguments = theirs
        return namespace, []

    def split(self, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """(tally's own arguments, the script and its arguments)."""
        ours: list[str] = []
        theirs: list[str] = []
        given: set[str] = set()
        rest = iter(args)
        for arg in rest:
            has_started = bool(theirs) or not given.isdisjoint(STARTS)
            if not (theirs and is_option_of(theirs[0], arg.partition("=")[0])):
                arg = self.spelled(arg)
            option = self.own_option(arg, has_started)
            if arg == "--":
                theirs += ["--", *rest] if is_launcher(ours, theirs) else rest
            elif option is not None and theirs and is_option_of(theirs[0], option):
                words = [arg]
                if option == "--gpu" and arg == option:
                    words += islice(rest, 1)
                if option == "--gpu" and is_chip(words[-1].rpartition("=")[2]):
                    self.check_once(option, given)
                    ours += words
                else:
                    self.say_shared(option, theirs[0])
                    theirs += words
            elif option is not None:
                if not isinstance(self._option_string_actions[option], argparse._AppendAction):
                    self.check_once(option, given)
                ours.append(arg)
                if arg == option and self._option_string_actions[option].nargs is None:
                    ours += islice(rest, 1)
            elif has_started or not arg.startswith("-") or arg == "-":
                if script := script_among(ours, theirs):
                    self.check_spelling(arg, script)
                theirs.append(arg)
            else:
                name = arg.partition("=")[0]
                self.error(
                    f"unknown option {name}. {did_you_mean(name, self._options())}\n"
                    "Options of the script go after it: tally run [options] SCRIPT [ARGS ...]"
                )
        return ours, theirs

    def own_option(self, arg: str, has_started: bool) -> str | None:
        """The option of ours that an argument is, written as `--name`, `--name=value`, `-ovalue`.

        Behind the script, -h, -m and --compile are the script's, and so is anything like
        `-optimizer`.
        """
        name = arg.split("=", 1)[0] if arg.startswith("--") or has_started else arg[:2]
        if name not in self._option_string_actions:
            return None
        return None if has_started and name in ("-h", "--help", "--compile", *STARTS) else name

    def check_spelling(self, arg: str, script: str) -> None:
        """An option that is nearly one of ours and none of the script's was meant for us: a script
        that does not look at it would run without the limit that it was to set.
        """
        from difflib import get_close_matches

        name = arg.partition("=")[0]
        options = self._options()
        if name in options:
            return  # ours before the script, and its own after it
        alike = [option for option in options if option[:3] == name[:3]]
        near = get_close_matches(name, alike, n=1, cutoff=NEAR)
        if near and ignores_option(script, name):
            self.error(
                f"unknown option {name}: {script} has none of this name. Did you mean {near[0]}?\n"
                f"If it is for the script, put it after --: {self.prog} ... {script} -- {name}"
            )

    def say_shared(self, option: str, script: str) -> None:
        print(
            f"tally: note: {option} goes to {script}, which has an option of this name. tally's "
            f"own goes before the script: {self.prog} {option} ... {script}",
            file=sys.stderr,
        )

    def check_once(self, option: str, given: set[str]) -> None:
        """The second time is probably meant for the script, and must not undo the first."""
        if option in given:
            self.error(
                f"{option} is given twice\n"
                f"One that is meant for the script goes after --: SCRIPT -- {option} ..."
            )
        given.add(option)


@dataclass(frozen=True, kw_only=True)
class ScriptOptions(OptionRecord):
    """The script, as a `RunParser` finds it behind the options."""

    script: str = ""
    script_arguments: tuple[str, ...] = ()
    module: str | None = own("-m", "run a module, as `python -m` does", Form("MODULE"))

    def script_named(self, example: str, *, takes_module: bool = True) -> "Script":
        """The script, as it was named. Raises UsageError where none is given."""
        from torchtally.tracer.script_file import Script, path_of_command

        if not self.module and not self.script:
            module = ", or -m MODULE" if takes_module else ""
            raise UsageError(f"missing script.\nGive one: `{example}`{module}.")
        target = self.module or path_of_command(self.script)
        return Script(target, self.script_arguments, is_module=self.module is not None)


def check_script(script: "Script") -> None:
    """Raises ScriptError for one that cannot be run. A file is checked without torch."""
    if script.is_module:
        from torchtally.tracer.script import check

        check(script)
        return
    from torchtally.tracer.script_file import check_file

    check_file(script.target)


# Numbers -----------------------------------------------------------------------------------------


def seconds(text: str) -> float:
    """A length of time; a number alone is in seconds."""
    is_bare = text.strip()[-1:].isdigit()
    return above_zero(parse_seconds, 1e9)(f"{text}s" if is_bare else text)


SECONDS = Form("S", seconds)
SIZE = Form("SIZE", above_zero(parse_bytes))
COMPILERS: dict[str, tuple[str, ...]] = {"inductor": (), "eager": ("compile=off",)}
"""What torch.compile does, as changes of the script."""


def until(text: str) -> "Until":
    """How long to train: "600000" steps, "24h" or "3.5d" of wall time, "15T-tokens"."""
    from torchtally.views.money import Until

    for length in (_steps_or_tokens(text), _wall_s(text)):
        if length and 0 < length[0] < MOST:
            return Until(*length)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a length of training. These work: 600000 (steps), 24h or 3.5d (also "
        "s, min, w, mo), 15T-tokens"
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


def _wall_s(text: str) -> "tuple[float, Extent] | None":
    from torchtally.views.money import Extent

    try:
        return parse_seconds(text), Extent.SECONDS
    except UsageError:
        return None


def price(text: str) -> tuple[str, float]:
    """(chip, USD per hour) of "2.49" (no chip is named) or "H200=2.49"."""
    name, equals, amount = text.rpartition("=")
    try:
        usd_per_hour = parse_usd(amount)
    except UsageError:
        usd_per_hour = 0.0
    if not 0 < usd_per_hour < 1e6 or (equals and not name.strip()):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not the price of a GPU for an hour. These work: 2.49, or for one of "
            "several chips H200=2.49"
        )
    return name.strip(), usd_per_hour
