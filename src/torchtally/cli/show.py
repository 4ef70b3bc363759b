"""`tally show`: any view of a trace, without running the script again and without torch."""

import argparse
import sys
from typing import TYPE_CHECKING

from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.ledger import Ledger
    from torchtally.views import Table

NAME = "show"
SUMMARY = "show a trace that `tally run -o FILE` wrote, from any side"

BY = (
    "line",
    "library-line",
    "module",
    "repeated-module",
    "op",
    "kind",
    "phase",
    "category",
    "timeline",
    "peak-line",
    "peak-module",
    "peak-repeated-module",
    "peak-storage",
    "activations-line",
    "activations-module",
    "growth",
    "workspace",
)
CONVENTIONS = ("full", "causal")

EPILOG = """\
views:
  line             the lines of your own code; a backward operator is on its forward line
  library-line     the innermost line, whoever wrote it (transformers' model code, for one)
  module           every module by its path; repeated-module folds h.0, h.1, ... into h.*
  op, kind, phase  operators as torch spells them; kinds of work; forward, backward, ...

views of memory:
  category         at the peak: parameters, gradients, optimizer state, activations, ...
  timeline         over the whole run: the fullest moment of each stretch, by category
  peak-line        at the peak, by the line that allocated it; peak-module by module;
                   peak-repeated-module with h.* for h.0, h.1, ...; peak-storage one by one
  activations-line what the forward pass saved for the backward pass, by the line that made
                   it; activations-module by module
  growth           what is held at the end of a step and was not a step before: leaks
  workspace        what no tensor holds, and how far each figure can be trusted

examples:
  tally show run.tally
  tally show run.tally --by line --top 20
  tally show run.tally --by line --sort bytes_saved
  tally show run.tally --by timeline
  tally show run.tally --allocator expandable_segments:True
  tally show run.tally --by op --json | jq '.rows[0]'
  tally show run.tally --convention causal      count the half of causal attention that is used
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Show a trace: one page about it, or one view in full.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE", help="a trace, as written by tally run -o FILE")
    parser.add_argument(
        "--by", choices=BY, metavar="VIEW", help="one view in full (see below), instead of the page"
    )
    parser.add_argument(
        "--allocator",
        action="append",
        metavar="SETTINGS",
        help="what the same run reserves under other settings, spelled as for "
        "PYTORCH_CUDA_ALLOC_CONF; several can be given",
    )
    parser.add_argument(
        "--sort", metavar="COLUMN", help="with --by: largest first by this column (bytes_saved)"
    )
    parser.add_argument("--top", type=_count, metavar="N", help="only the N most expensive rows")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="a JSON document instead of text, to FILE or to stdout",
    )
    parser.add_argument(
        "--convention",
        choices=CONVENTIONS,
        default="full",
        help="count causal attention in full (the default) or by half",
    )
    parser.set_defaults(command=command)


def _count(text: str) -> int:
    if not (text.isdecimal() and 0 < len(text) < 10 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of rows, 1 or more")
    return int(text)


def command(args: argparse.Namespace) -> int:
    """Show what was asked for. Raises TraceFileError for a file that is not a whole trace."""
    import gc

    if args.by is not None and args.allocator:
        raise UsageError("--by and --allocator are two views: ask for one at a time.")
    if args.by is None and not args.allocator and (args.sort or args.top):
        raise UsageError("--sort and --top need a view: add --by line, for one.")
    from torchtally.cli.output import emit, write_or_emit
    from torchtally.convention import Attention
    from torchtally.ledger import account
    from torchtally.record.file import read_trace
    from torchtally.targets import known_roofline

    gc.disable()  # a short life with a million records, none of them garbage
    trace = read_trace(args.file)
    convention = Attention(args.convention)
    ledger = account(trace, convention=convention, roofline=known_roofline(trace.chip))
    if args.json is not None:
        write_or_emit(_json(ledger, args), args.json)
    else:
        emit(_text(ledger, args))
    return 0


def _json(ledger: "Ledger", args: argparse.Namespace) -> str:
    from torchtally.report.json import dumps, ledger_document, table_document

    if args.by is None and not args.allocator:
        return dumps(ledger_document(ledger))
    return dumps(table_document(_view(ledger, args), ledger))


def _view(ledger: "Ledger", args: argparse.Namespace) -> "Table":
    from torchtally.views import by
    from torchtally.views.allocators import allocators

    table = allocators(ledger, args.allocator) if args.allocator else by(ledger, args.by)
    return (table.sorted_by(args.sort) if args.sort else table).top(args.top)


def _text(ledger: "Ledger", args: argparse.Namespace) -> str:
    from torchtally.cli.output import is_coloured, width
    from torchtally.report.text import summary_text, table_text
    from torchtally.views.summary import summarise

    colour = is_coloured(sys.stdout)
    if args.by is None and not args.allocator:
        summary = summarise(ledger)
        return summary_text(summary, file=args.file, width=width(), is_coloured=colour)
    return table_text(_view(ledger, args), width=width(), is_coloured=colour)
