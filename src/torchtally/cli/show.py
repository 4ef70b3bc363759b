"""`tally show`: any view of a trace, without running the script again and without torch."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torchtally.cli.arguments import price, until
from torchtally.cli.chip_names import say_variants
from torchtally.cli.ledgers import TraceOptions, chip_of, ledger_of_file
from torchtally.cli.output import OUTPUT, PageOptions, TableOptions, check_columns, write_report
from torchtally.errors import UsageError
from torchtally.options import BANDWIDTH, CHIP, FILE, Form, one_of, option, own

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torchtally.ledger import Ledger
    from torchtally.report.report import Report
    from torchtally.table import Table
    from torchtally.timing.roofline import Roofline
    from torchtally.views.money import Until

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
  tally show run.tally --whole --disk 2GB/s     with evaluations and saves, by the script's loop
  tally show run.tally --until 24h --price 2.49
  tally show run.tally --convention causal      count the half of causal attention that is used
"""


TITLES = {
    "work": "views",
    "time": "views of time; those above show it, too",
    "memory": "views of memory",
}


def view_names() -> "Iterable[str]":
    from torchtally.views import VIEWS

    return VIEWS


VIEW = Form("VIEW", one_of(view_names))


@dataclass(frozen=True, kw_only=True)
class ShowOptions(TraceOptions, TableOptions, PageOptions):
    """Show a trace: one page about it, or one view in full."""

    by: str | None = own("--by", "one view in full (see below), instead of the page", VIEW)
    allocator: tuple[str, ...] = own(
        "--allocator",
        "what the same run reserves under other settings, spelled as in PYTORCH_CUDA_ALLOC_CONF "
        "(repeatable)",
        Form("SETTINGS"),
        is_repeated=True,
    )
    gpu: tuple[str, ...] = own(
        "--gpu",
        "compare the traced chip with this one (repeatable). With --by: the view as timed on this "
        "chip",
        CHIP,
        is_repeated=True,
    )
    until: "Until | None" = own(
        "--until",
        "cost and energy of so many steps (600000), so much time (24h, 3.5d) or so many tokens "
        "(15T-tokens)",
        Form("LENGTH", until),
    )
    whole: bool = own(
        "--whole",
        "the whole training by cause: steps, evaluations and saves as often as the script's loop "
        "says; its length, too, unless --until 600000 gives it",
    )
    disk: int | None = own(
        "--disk", "with --whole: bytes per second at which checkpoints are saved: 2GB/s", BANDWIDTH
    )
    price: tuple[tuple[str, float], ...] = own(
        "--price",
        "with --until, --gpu or --by: your own price of a GPU per hour (2.49); for one of several "
        "chips: H200=2.49",
        Form("USD", price),
        is_repeated=True,
    )
    roofline: bool = own(
        "--roofline",
        "a plot: each operator's speed against what the chip allows; with --gpu, another chip",
    )
    html: str | None = option(
        "--html",
        OUTPUT,
        "a page for a browser, to FILE: that plot, and the views by bound, line and module",
        FILE,
        is_written=True,
    )

    @property
    def is_drawn(self) -> bool:
        """A plot is asked for, in the terminal or on a page."""
        return self.roofline or self.html is not None


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


EPILOG = epilog


def command(options: ShowOptions) -> int:
    """Show the view. Raises TraceFileError for a file that is not a whole trace."""
    check(options)
    say_variants(options.gpu)
    chips = [chip_of(name) for name in options.gpu]
    is_of_one = options.by is not None or options.is_drawn
    ledger = ledger_of_file(options, chips[0] if is_of_one and chips else None)
    write_report(_report(ledger, chips, options), options, is_beside_files=options.roofline)
    return 0


def _report(ledger: "Ledger", chips: "Sequence[Roofline]", options: ShowOptions) -> "Report":
    from torchtally.report.ledger import roofline_report, view_report
    from torchtally.report.whole_run import run_report

    if options.is_drawn:
        return roofline_report(ledger)
    table = _table(ledger, chips, options)
    if table is None:
        return run_report(
            ledger, file=options.file, columns=options.columns, is_elsewhere=bool(chips)
        )
    return view_report(table, ledger)


def check(options: ShowOptions) -> None:
    """Raises UsageError for options that ask for two things at once, or for nothing."""
    is_money = options.until is not None or (bool(options.price) and options.by is None)
    if options.is_drawn and (
        options.by or options.allocator or is_money or options.json is not None
    ):
        raise UsageError("--roofline and --html are a separate view: give one at a time.")
    if options.is_drawn and len(options.gpu) > 1:
        raise UsageError("--roofline and --html show one chip: give one --gpu.")
    if options.by is not None and options.allocator:
        raise UsageError("--by and --allocator are two views: give one at a time.")
    if (options.by is not None or options.allocator) and is_money:
        raise UsageError("--until is a separate view: leave out --by and --allocator.")
    if options.allocator and options.gpu:
        raise UsageError("--allocator and --gpu are two views: give one at a time.")
    if options.by is not None and len(options.gpu) > 1:
        raise UsageError(
            f"--by {options.by} shows one chip, but --gpu names {len(options.gpu)}: give one, or "
            "leave out --by to compare them."
        )
    if options.price and options.until is None and not options.gpu and options.by is None:
        raise UsageError(
            "--price changes nothing in this report: add a training length (--until 600000, in "
            "steps; --until 24h), or a view with times (--by line; --gpu A100-SXM)."
        )
    check_whole(options)
    is_view = options.whole or options.by or options.allocator or options.gpu or is_money
    if not is_view and (options.sort or options.top or options.filter):
        raise UsageError("--sort, --top and --filter need a view: add --by line, for example.")
    if not is_view:
        check_columns(options.columns)


def check_whole(options: ShowOptions) -> None:
    """Raises UsageError for another view beside --whole, and for --disk without it."""
    if options.disk is not None and not options.whole:
        raise UsageError("--disk is the speed of saves: add --whole.")
    if options.whole and (options.by or options.allocator or options.gpu or options.price):
        raise UsageError("--whole is a view: leave out --by, --allocator, --gpu and --price.")
    if options.whole and options.is_drawn:
        raise UsageError("--whole is a table: leave out --roofline and --html.")


def _whole(ledger: "Ledger", options: ShowOptions) -> "Table":
    """A training as long as --until says, or else the script."""
    from torchtally.views.money import Extent
    from torchtally.views.whole_training import whole_training

    until = options.until
    if until is not None and until.extent is not Extent.STEPS:
        raise UsageError("--whole counts steps: give --until 600000.")
    return whole_training(ledger, None if until is None else int(until.amount), options.disk)


def _table(ledger: "Ledger", chips: "Sequence[Roofline]", options: ShowOptions) -> "Table | None":
    """The view that was asked for; None where it is the page."""
    from torchtally.views import by
    from torchtally.views.allocators import allocators
    from torchtally.views.money import own_price

    if options.allocator:
        table = allocators(ledger, options.allocator)
    elif options.by is not None:
        chip = chips[0].chip.name if chips else ledger.trace.chip
        prices = own_prices(options.price, [chip])
        table = by(ledger, options.by, own_price=own_price(prices[chip]) if prices else None)
        if prices and all(column.name != "cost_usd" for column in table.columns):
            raise UsageError(f"--price changes nothing in --by {options.by}: it has no times.")
        if chips:
            parts = (table.title,) if isinstance(table.title, str) else table.title
            table = replace(table, title=(*parts, f", timed on {chips[0].chip.name}"))
    elif options.whole:
        table = _whole(ledger, options)
    elif chips or options.until is not None:
        table = _costs(ledger, chips, options)
    else:
        return None
    return options.chosen(table)


def _costs(ledger: "Ledger", chips: "Sequence[Roofline]", options: ShowOptions) -> "Table":
    """Chips beside each other, or what the traced one costs."""
    from torchtally.views.comparison import comparison
    from torchtally.views.money import money, own_price

    if chips:
        names = [ledger.trace.chip, *(gpu.chip.name for gpu in chips)]
        prices = own_prices(options.price, names)
        return comparison(ledger, chips, until=options.until, own_prices=prices)
    prices = own_prices(options.price, [ledger.trace.chip])
    price = own_price(prices[ledger.trace.chip]) if prices else None
    assert options.until is not None
    return money(ledger, options.until, own_price=price)


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
