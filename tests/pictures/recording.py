"""A recording of a terminal as one animated SVG: self-contained, without scripts, small.

The command is run twice: in a pipe for its lines of progress, whose times are left out since they
are the machine's, and in a terminal of its own for all the rest with its colours. What is drawn is
what it printed; the typing alone is made up.
"""

import io
import os
import pty
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

from tests.warm import TALLY, warm
from torchtally.progress import CLEAR_LINE

COLUMNS, ROWS = 80, 28
PROMPT = "$ "
ELAPSED = re.compile(r", [\d.]+ (ns|us|ms|s|min)$")
PARTS = ("styles", "lines", "chrome", "backgrounds", "matrix", "width", "height", "terminal_x",
         "terminal_y")  # fmt: skip
TYPED_LETTERS = 4
"""In one frame."""
SCROLLED_LINES = 5


@dataclass(frozen=True, slots=True)
class Frame:
    """What the screen shows for a while."""

    lines: tuple[Text, ...]
    seconds: float


def recording(command: str, folder: Path) -> str:
    """The SVG of a command of `tally`, run in a folder."""
    words = warm(TALLY, *shlex.split(command)[1:])
    progress = [Text(ELAPSED.sub("", line)) for line in progress_lines(words, folder)]
    report = list(AnsiDecoder().decode("\n".join(terminal_lines(words, folder))))
    return svg(list(frames(command, progress, report)), main=report_frame(command, progress))


def environment() -> dict[str, str]:
    left_out = ("NO_COLOR", "COLUMNS", "LINES", "CI", "TALLY_GPU", "TALLY_CALIBRATIONS")
    variables = {name: text for name, text in os.environ.items() if name not in left_out}
    return {**variables, "TERM": "xterm-256color", "TALLY_CALIBRATIONS": os.devnull}


def progress_lines(words: Sequence[str], folder: Path) -> list[str]:
    done = subprocess.run(
        words, cwd=folder, env=environment(), capture_output=True, text=True, check=True
    )
    return [line for line in done.stderr.splitlines() if line.startswith("tally: step ")]


def terminal_lines(words: Sequence[str], folder: Path) -> list[str]:
    """What stays on a terminal after the command, with its colours."""
    ours, theirs = pty.openpty()
    variables = {**environment(), "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    with subprocess.Popen(
        words, cwd=folder, env=variables, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        printed = b"".join(read_all(ours)).decode()
        os.close(ours)
    assert process.returncode == 0, printed
    lines = printed.replace("\r\n", "\n").removesuffix("\n").split("\n")
    return [line.rpartition(CLEAR_LINE)[2] for line in lines]


def read_all(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # EIO: the other end of a terminal is closed
            return
        if not part:
            return
        yield part


# Frames -----------------------------------------------------------------------------------------


def report_frame(command: str, progress: Sequence[Text]) -> int:
    """The number of the frame that begins the report: what is shown where nothing moves."""
    return len(list(typed(command))) + len(progress)


def typed(command: str) -> Iterator[str]:
    for count in range(0, len(command), TYPED_LETTERS):
        yield command[:count]
    yield command


def frames(command: str, progress: Sequence[Text], report: Sequence[Text]) -> Iterator[Frame]:
    """Typing, progress, the report's beginning, then the rest of it line by line."""
    for text in typed(command):
        yield Frame((prompt(f"{text}█"),), 0.12)
    whole = prompt(command)
    for line in progress:
        yield Frame((whole, line), 0.9)
    lines = [whole, *report]
    yield Frame(tuple(lines[:ROWS]), 6.0)
    last = max(len(lines) - ROWS, 0)
    for first in range(SCROLLED_LINES, last, SCROLLED_LINES):
        yield Frame(tuple(lines[first : first + ROWS]), 0.25)
    yield Frame(tuple(lines[last:]), 7.0)


def prompt(command: str) -> Text:
    return Text.assemble((PROMPT, "bold green"), command)


# SVG --------------------------------------------------------------------------------------------


def svg(screens: Sequence[Frame], *, main: int) -> str:
    """All frames one upon the other, each visible in its time; `main` where nothing moves."""
    drawn = [exported(frame, number) for number, frame in enumerate(screens)]
    first = drawn[0]
    seconds = sum(frame.seconds for frame in screens)
    style, begun = [], 0.0
    for number, frame in enumerate(screens):
        ended = begun + frame.seconds
        style.append(keyframes(number, begun / seconds, ended / seconds))
        begun = ended
    groups = "\n".join(
        f'<g class="frame{" main" if number == main else ""}" id="frame-{number}">'
        f"{each['backgrounds']}{each['matrix']}</g>"
        for number, each in enumerate(drawn)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {first["width"]} {first["height"]}" '
        'role="img" aria-label="A terminal in which tally run accounts for a training script">\n'
        f"<style>\n{STYLE.format(seconds=f'{seconds:g}')}{''.join(style)}"
        f"{''.join(each['styles'] + chr(10) for each in drawn)}</style>\n"
        f"<defs>{first['lines']}</defs>\n{first['chrome']}\n"
        f'<g transform="translate({first["terminal_x"]}, {first["terminal_y"]})">\n{groups}\n'
        "</g>\n</svg>\n"
    )


STYLE = """\
text {{ white-space: pre;
  font: 20px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }}
.frame {{ visibility: hidden; animation: {seconds}s step-end infinite; }}
@media (prefers-reduced-motion: reduce) {{
  .frame {{ animation: none; }}
  .main {{ visibility: visible; }}
}}
"""


EMPTY = re.compile(r"<text[^>]*>\s*</text>")


def keyframes(number: int, begin: float, end: float) -> str:
    hidden = "" if begin == 0 else "0% { visibility: hidden; } "
    last = "" if end >= 1 else f"{end:.3%} {{ visibility: hidden; }} "
    return (
        f"#frame-{number} {{ animation-name: frame-{number}; }}\n"
        f"@keyframes frame-{number} {{ {hidden}{begin:.3%} {{ visibility: visible; }} {last}}}\n"
    )


def exported(frame: Frame, number: int) -> dict[str, str]:
    """The parts of rich's SVG of a screen. Frames share the clip paths of their lines."""
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False,
        color_system="truecolor", legacy_windows=False,
    )  # fmt: skip
    for row in range(ROWS):
        line = frame.lines[row] if row < len(frame.lines) else Text()
        console.print(line, soft_wrap=True, crop=True)
    separator = "\x1f"
    text = console.export_svg(
        title="",
        theme=DIMMED_MONOKAI,
        unique_id=f"f{number}",
        code_format=separator.join(f"{{{part}}}" for part in PARTS),
    )
    text = re.sub(rf"f{number}-(line-\d+|clip-terminal)", r"\1", text)
    parts = dict(zip(PARTS, text.split(separator), strict=True))
    return {name: EMPTY.sub("", "\n".join(map(str.strip, part.splitlines())))
            for name, part in parts.items()}  # fmt: skip
