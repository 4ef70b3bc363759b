"""`tally show`: any view of a trace, without running the script again and without torch."""

import argparse
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from torchtally.cli.arguments import Subparsers, price, until
from torchtally.cli.chip_names import say_variants
from torchtally.cli.destination import add_output
from torchtally.cli.ledgers import add_convention, ledger_of_file
from torchtally.cli.output import (
    add_columns,
    add_filter,
    add_format,
    check_columns,
    choose,
    write_report,
)
from torchtally.errors import UsageError
from torchtally.options import one_of, positive_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtally.ledger import Ledger
    from torchtally.report.report import Report
    from torchtally.table import Table
    from torchtally.timing.roofline import Roofline

NAME = "show"
SUMMARY = "show any view of a trace that `tally run -o FILE` wrote"

EXAMPLES = """\
examples:
  tally show run.tally
  tally show run.tally --by line --top 20
  tally show run.tally --by line --sort bytes_saved
  tally show run.tally --by line --filter "flops_backward>1e12" --columns views,copies
  tally show run.tally --by timeline
  tally show run.tally --by step                every step of the run, and evaluation
  tally show run.tally --step all               the whole run; --step 3, --step 2..5
  tally show run.tally --roofline --html page.html
  tally show run.tally --allocator expandable_segments:True
  tally show run.tally --by op --json | jq '.rows[0]'
  tally show run.tally --gpu A100-SXM --gpu RTX-4090 --gpu H200      the same step elsewhere
  tally show run.tally --by line --gpu A100-SXM
  tally show run.tally --until 600000           what so many steps cost; --until 24h, 15T-tokens
  tally show run.tally --until 24h --price 2.49
  tally show run.tally --convention causal      count the half of causal attention that is used
"""


TITLES = {
    "work": "views",
    "time": "views of time; those above show it, too",
    "memory": "views of memory",
}


def step_selection(text: str) -> "int | tuple[int, int] | str":
    """A step, the first and last of several, or "all". Raises ArgumentTypeError otherwise."""
    if text == "all":
        return text
    first, dots, last = text.partition("..")
    return (positive_count(first), positive_count(last)) if dots else positive_count(first)


def view_names() -> "Iterable[str]":
    from torchtally.views import VIEWS

    return VIEWS


def epilog() -> str:
    """Every view with its line of help, and the examples."""
    from torchtally.views import VIEWS

    width = max(map(len, VIEWS))
    parts = []
    for subject, title in TITLES.items():
        lines = (
            f"  {view.name:{width}}  {view.summary}"
            for view in VIEWS.values()
            if view.subject == subject
        )
        parts.append("\n".join([f"{title}:", *lines, "", ""]))
    return "".join(parts) + EXAMPLES


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Show a trace: one page about it, or one view in full.",
        epilog=epilog,
    )
    parser.add_argument("file", metavar="FILE", help="a trace, as written by tally run -o FILE")
    parser.add_argument(
        "--by",
        type=one_of(view_names),
        metavar="VIEW",
        help="one view in full (see below), instead of the page",
    )
    parser.add_argument(
        "--step",
        type=step_selection,
        metavar="N",
        help="totals of step N, of FIRST..LAST, or of the whole run ('all'); default: a step "
        "that is like others. A single step excludes evaluation",
    )
    parser.add_argument(
        "--allocator",
        action="append",
        metavar="SETTINGS",
        help="what the same run reserves under other settings, spelled as in "
        "PYTORCH_CUDA_ALLOC_CONF (repeatable)",
    )
    parser.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="NAME",
        help="compare the traced chip with this one (repeatable). With --by: the view as timed "
        "on this chip",
    )
    parser.add_argument(
        "--until",
        type=until,
        metavar="LENGTH",
        help="cost and energy of so many steps (600000), so much time (24h, 3.5d) or so many "
        "tokens (15T-tokens)",
    )
    parser.add_argument(
        "--price",
        type=price,
        action="append",
        default=[],
        metavar="USD",
        help="with --until, --gpu or --by: your own price of a GPU per hour (2.49); for one of "
        "several chips: H200=2.49",
    )
    parser.add_argument(
        "--roofline",
        action="store_true",
        help="a plot: each operator's speed against what the chip allows; with --gpu, another chip",
    )
    add_output(
        parser,
        "--html",
        metavar="FILE",
        help="a page for a browser, to FILE: that plot, and the views by bound, line and module",
    )
    add_columns(parser)
    parser.add_argument(
        "--sort", metavar="COLUMN", help="with --by: largest first by this column (bytes_saved)"
    )
    add_filter(parser)
    parser.add_argument(
        "--top", type=positive_count, metavar="N", help="only the N most expensive rows"
    )
    add_format(parser)
    add_convention(parser)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Show the view. Raises TraceFileError for a file that is not a whole trace."""
    check(args)
    say_variants(args.gpu)
    chips = [chip_of(name) for name in args.gpu]
    is_of_one = args.by is not None or is_drawn(args)
    ledger = ledger_of_file(args, chips[0] if is_of_one and chips else None)
    write_report(_report(ledger, chips, args), args, is_beside_files=args.roofline)
    return 0


def is_drawn(args: argparse.Namespace) -> bool:
    """A plot is asked for, in the terminal or on a page."""
    return args.roofline or args.html is not None


def _report(ledger: "Ledger", chips: "Sequence[Roofline]", args: argparse.Namespace) -> "Report":
    from torchtally.report.ledger import roofline_report, view_report
    from torchtally.report.whole_run import run_report

    if is_drawn(args):
        return roofline_report(ledger)
    table = _table(ledger, chips, args)
    if table is None:
        return run_report(ledger, file=args.file, columns=args.columns, is_elsewhere=bool(chips))
    return view_report(table, ledger)


def check(args: argparse.Namespace) -> None:
    """Raises UsageError for options that ask for two things at once, or for nothing."""
    is_money = args.until is not None or (bool(args.price) and args.by is None)
    if is_drawn(args) and (args.by or args.allocator or is_money or args.json is not None):
        raise UsageError("--roofline and --html are a separate view: give one at a time.")
    if is_drawn(args) and len(args.gpu) > 1:
        raise UsageError("--roofline and --html show one chip: give one --gpu.")
    if args.by is not None and args.allocator:
        raise UsageError("--by and --allocator are two views: give one at a time.")
    if (args.by is not None or args.allocator) and is_money:
        raise UsageError("--until is a separate view: leave out --by and --allocator.")
    if args.allocator and args.gpu:
        raise UsageError("--allocator and --gpu are two views: give one at a time.")
    if args.by is not None and len(args.gpu) > 1:
        raise UsageError(
            f"--by {args.by} shows one chip, but --gpu names {len(args.gpu)}: give one, or leave "
            "out --by to compare them."
        )
    if args.price and args.until is None and not args.gpu and args.by is None:
        raise UsageError(
            "--price changes nothing in this report: add a training length (--until 600000, in "
            "steps; --until 24h), or a view with times (--by line; --gpu A100-SXM)."
        )
    is_view = args.by or args.allocator or args.gpu or is_money
    if not is_view and (args.sort or args.top or args.filter):
        raise UsageError("--sort, --top and --filter need a view: add --by line, for example.")
    if not is_view:
        check_columns(args.columns)


def chip_of(name: str) -> "Roofline":
    """What times are predicted by on the chip of this name. Raises UsageError for a cluster."""
    from torchtally.chips import cluster
    from torchtally.timing.targets import roofline

    if re.match(r"\s*\d+\s*[xX\u00d7]", name) is None:
        return roofline(name)
    several = cluster(name)
    if several.count == 1:
        return roofline(several.chip.name)
    raise UsageError(
        f"--gpu {name}: a trace covers one GPU and cannot tell what {several.count} would send "
        "each other.\n"
        f"For one of them: --gpu {several.chip.name}. `tally plan MODEL --gpus {name.strip()} "
        "--search` lays a model out over all of them."
    )


def _table(
    ledger: "Ledger", chips: "Sequence[Roofline]", args: argparse.Namespace
) -> "Table | None":
    """The view that was asked for; None where it is the page."""
    from torchtally.views import by
    from torchtally.views.allocators import allocators
    from torchtally.views.money import own_price

    if args.allocator:
        table = allocators(ledger, args.allocator)
    elif args.by is not None:
        chip = chips[0].chip.name if chips else ledger.trace.chip
        prices = own_prices(args.price, [chip])
        table = by(ledger, args.by, own_price=own_price(prices[chip]) if prices else None)
        if prices and all(column.name != "cost_usd" for column in table.columns):
            raise UsageError(f"--price changes nothing in --by {args.by}: it has no times.")
        if chips:
            parts = (table.title,) if isinstance(table.title, str) else table.title
            table = replace(table, title=(*parts, f", timed on {chips[0].chip.name}"))
    elif chips or args.until is not None:
        table = _costs(ledger, chips, args)
    else:
        return None
    return choose(table, args)


def _costs(ledger: "Ledger", chips: "Sequence[Roofline]", args: argparse.Namespace) -> "Table":
    """Chips beside each other, or what the traced one costs."""
    from torchtally.views.comparison import comparison
    from torchtally.views.money import money, own_price

    if chips:
        names = [ledger.trace.chip, *(gpu.chip.name for gpu in chips)]
        prices = own_prices(args.price, names)
        return comparison(ledger, chips, until=args.until, own_prices=prices)
    prices = own_prices(args.price, [ledger.trace.chip])
    price = own_price(prices[ledger.trace.chip]) if prices else None
    return money(ledger, args.until, own_price=price)


def own_prices(given: "Sequence[tuple[str, float]]", names: "Sequence[str]") -> dict[str, float]:
    """The user's prices by chip. Raises UsageError for one of a chip that is not shown.

    A price without a name is of the one chip there is.
    """
    from torchtally.chips import chip

    shown = list(dict.fromkeys(names))
    prices = {}
    for name, usd_per_hour in given:
        if not name and len(shown) > 1:
            raise UsageError(
                f"--price {usd_per_hour:g}: several chips are shown. Name one: --price "
                f"{shown[-1]}={usd_per_hour:g}."
            )
        chip_name = shown[0] if not name else name if name in shown else chip(name).name
        if chip_name not in shown:
            raise UsageError(
                f"--price {name}: {chip_name} is not shown here; add --gpu {chip_name}."
            )
        prices[chip_name] = usd_per_hour
    return prices
