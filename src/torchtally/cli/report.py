"""`tally report`: the interactive page of a run, one file for a browser."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtally.cli.destination import check_output
from torchtally.cli.ledgers import TimedOptions, timed_ledger
from torchtally.cli.output import write_or_emit
from torchtally.cli.sources import source_texts
from torchtally.options import Form, own

if TYPE_CHECKING:
    from torchtally.ledger import Ledger

SUMMARY = "an interactive page of a run: source, memory over time, treemap, roofline"

EPILOG = """\
examples:
  tally run train.py                      leaves its trace in run.tally
  tally report run.tally                  writes run.html beside it: open it in a browser
  tally report run.tally -o /tmp/page.html
  tally report run.tally --gpu A100-SXM   the same run, timed on another chip
  tally report run.tally --step all       the whole run instead of a steady step
  tally report run.tally --no-source      without the text of the files that ran

The page is one file. It loads nothing, and its policy forbids it to: it can be kept, sent and
opened without a network. With the source, it holds the text of the Python files that ran, as far
as they are on this machine and still are what ran; without, the lines that ran alone.
"""


@dataclass(frozen=True, kw_only=True)
class ReportPageOptions(TimedOptions):
    """Write an interactive page of a run: verdict, source with costs by line, memory over time,
    treemap of the peak, modules, operators, roofline, streams.
    """

    output: str | None = own(
        "-o",
        "where the page goes (default: FILE with .html; - for stdout)",
        Form("PAGE"),
        alias="--output",
        is_written=True,
    )
    replace: bool = False
    has_source: bool = own("--no-source", "no text of files but the lines that ran", turns_off=True)


def command(options: ReportPageOptions) -> int:
    """Write the page. Raises TraceFileError for a file that is not a whole trace."""
    place = options.output or f"{options.file.removesuffix('.tally')}.html"
    check_output(place, "-o", replaces=options.replace)
    write_page(timed_ledger(options), place, has_source=options.has_source)
    if place != "-":
        print(place)
    return 0


def write_page(ledger: "Ledger", place: str, *, has_source: bool = True) -> None:
    """Writes to a file, or to stdout for "-". Raises UsageError where it cannot be written."""
    from torchtally.report.browser.page import browser_page

    write_or_emit(browser_page(ledger, source_texts(ledger) if has_source else {}), place)
