"""`tally view`: walk through a run, full-screen in the terminal or in a browser."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from torchtally.cli.ledgers import TimedOptions, TraceOptions, ledger_of_file, timed_ledger
from torchtally.cli.report import write_page
from torchtally.errors import UsageError
from torchtally.options import own
from torchtally.progress import is_terminal

if TYPE_CHECKING:
    from torchtally.ledger import Ledger

SUMMARY = "walk through a run in the terminal: source, modules, operators, memory"

EPILOG = """\
examples:
  tally run train.py                      leaves its trace in run.tally
  tally view run.tally                    full-screen, in this terminal
  tally view run.tally --gpu A100-SXM     the same run, timed on another chip
  tally view run.tally --browser          the page of `tally report`, in a browser

keys: 1 to 8 or tab change the page, arrows move, enter opens what a row is made of, escape goes
back, / searches, s sorts by the next column, r reverses, ? lists all keys, q ends.

Needs textual: pip install 'torchtally[view]'. --browser does not.
"""


@dataclass(frozen=True, kw_only=True)
class ViewOptions(TimedOptions):
    """Walk through a run, full-screen: verdict, source with costs by line, module tree,
    operators, memory over time with what is alive, streams, placeholders.
    """

    browser: bool = own(
        "--browser",
        "write the page of `tally report` to a temporary file, and open it in a browser",
    )


def command(options: ViewOptions) -> int:
    """Show the run. Raises UsageError where there is no terminal or no textual."""
    if options.browser:
        return open_in_browser(options)
    if reason := why_no_screen():
        raise UsageError(
            f"{reason}.\n"
            f"Instead: `tally show {options.file}` prints the run, `tally view {options.file} "
            "--browser` shows it in a browser."
        )
    view(timed_ledger(options), options.file)
    return 0


def why_no_screen() -> str:
    """Why nothing can be drawn full-screen; "" where it can."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if not all(stream is not None and is_terminal(stream) for stream in streams):
        return "tally view needs a terminal for input and output"
    if find_spec("textual") is None:
        return (
            "tally view draws with textual, which is not installed: pip install 'torchtally[view]'"
        )
    return ""


def view_file(place: str) -> None:
    """A trace as `tally view` shows it without options."""
    view(ledger_of_file(TraceOptions(file=place)), place)


def view(ledger: "Ledger", file: str) -> None:
    """Full-screen, until it is ended."""
    import gc

    from torchtally.cli.output import is_coloured
    from torchtally.cli.sources import source_texts
    from torchtally.report.viewer.app import TraceViewer

    gc.freeze()  # the trace stays; what the screen makes from here on is collected again
    gc.enable()
    TraceViewer(
        ledger, lambda: source_texts(ledger), file=file, has_colours=is_coloured(sys.stdout)
    ).run()


def open_in_browser(options: ViewOptions) -> int:
    """Write the page where only this user can read it, and say where it is."""
    import os
    import tempfile
    import webbrowser
    from pathlib import Path

    ledger = timed_ledger(options)
    number, place = tempfile.mkstemp(prefix="tally-", suffix=".html")
    os.close(number)
    write_page(ledger, place)
    print(place)
    if not webbrowser.open(Path(place).as_uri()):
        print("tally: no browser could be started: open that file in one.", file=sys.stderr)
    return 0
