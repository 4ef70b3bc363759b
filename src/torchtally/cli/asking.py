"""`tally plan` without arguments: questions at a terminal, and the command that answers them."""

import shlex
import sys
from collections.abc import Callable, Iterator

from torchtally.cli.output import is_coloured
from torchtally.cli.streams import say
from torchtally.errors import TallyError

Words = list[str]
"""Of `tally plan`."""

WELCOME = """\
Which training do you plan? Enter takes the default in brackets, Ctrl-C quits.
`tally plan --help` has everything that can be asked.
"""
MODEL = "70B"
QUESTIONS = (
    ("What is trained? A model's name, a config.json or a number of parameters", "", MODEL),
    ("On which chips? 8xH100-SXM; Enter: on none, only its size and FLOPs", "--gpus", ""),
    ("On how many tokens? 15T; Enter: does it fit, and how fast is a step?", "--tokens", ""),
    ("At which MFU? 0.4; Enter: the MFU predicted for the best layout", "--mfu", ""),
)
NEEDS = {"--tokens": "--gpus", "--mfu": "--tokens"}
"""What is asked for only where this was given."""
AGAIN = "Change something? --batch 64, --recipe fp8, --search, another model; Enter quits"


def is_terminal() -> bool:
    """Somebody can be asked, and sees what."""
    streams = (sys.stdin, sys.stderr)
    return all(stream is not None and stream.isatty() for stream in streams)


def converse(answer: Callable[[Words], int], check: Callable[[Words], object]) -> int:
    """Ask, answer, and go on until nothing is changed. The last answer's exit code.

    `check` raises for words that cannot be read.
    """
    print(WELCOME, file=sys.stderr)
    words = list(_ask_all(check))
    while True:
        code = show_answer(words, answer)
        more = ask(AGAIN, "")
        if not more:
            return code
        changed = changed_words(words, more)
        if is_readable(changed, check):
            words = changed


def _ask_all(check: Callable[[Words], object]) -> Iterator[str]:
    given: set[str] = set()
    for question, option, default in QUESTIONS:
        if option in NEEDS and NEEDS[option] not in given:
            continue
        words = checked_words(question, option, default, check)
        given |= {option} if words else set()
        yield from words


def checked_words(
    question: str, option: str, default: str, check: Callable[[Words], object]
) -> Words:
    """What is said to a question, as words of the command; asked again where it cannot be read."""
    while True:
        text = ask(question, default)
        if not text:
            return []
        words = [option, text] if option else [text]
        if is_readable(words, check):
            return words


def is_readable(words: Words, check: Callable[[Words], object]) -> bool:
    """Whether the command takes these words; why not is said."""
    try:
        check(words)
    except TallyError as error:
        say(f"tally: {error}")
    except SystemExit:  # --help, which has been printed
        pass
    else:
        return True
    return False


def changed_words(words: Words, more: str) -> Words:
    """The words with options added, or with another model."""
    added = more.split() if more.count('"') % 2 or more.count("'") % 2 else shlex.split(more)
    if added and not added[0].startswith("-"):
        return [added[0], *words[1:], *added[1:]]
    return [*words, *added]


def show_answer(words: Words, answer: Callable[[Words], int]) -> int:
    """The command, then what it answers. Errors are said: the next question follows them."""
    command = shlex.join(["tally", "plan", *words])
    bold = "\x1b[1m{}\x1b[0m" if is_coloured(sys.stderr) else "{}"
    print(f"\n{bold.format(command)}\n", file=sys.stderr)
    try:
        code = answer(words)
    except TallyError as error:
        say(f"tally: error: {error}")
        return error.exit_code
    except SystemExit as ended:
        return int(ended.code or 0)
    if sys.stdout is not None:
        sys.stdout.flush()
    print(file=sys.stderr)
    return code


def ask(question: str, default: str) -> str:
    """One line from the terminal. Raises KeyboardInterrupt at its end, as Ctrl-C does."""
    print(f"{question}{f' [{default}]' if default else ''}: ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        print(file=sys.stderr)
        raise KeyboardInterrupt
    return line.strip() or default
