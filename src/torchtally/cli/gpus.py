"""`tally gpus`: the chips that can be simulated, and what each one promises."""

import argparse
import sys

NAME = "gpus"
SUMMARY = "list the GPUs that can be simulated"

EPILOG = """\
examples:
  tally gpus
  tally gpus --json | jq -r '.chips[] | select(.memory_bytes > 8e10) | .name'
"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="List the chips of the hardware table: memory, bandwidth, dense bf16 peak.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="all that is known, with sources, as JSON to FILE or to stdout",
    )
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Print the table, or write the document."""
    from torchtally.cli.output import emit, is_coloured, width, write_or_emit
    from torchtally.hardware import chips
    from torchtally.views.chips import chip_table

    if args.json is not None:
        from torchtally.report.json import chips_document, dumps

        write_or_emit(dumps(chips_document(chips())), args.json)
        return 0
    from torchtally.report.text import table_text

    colour = is_coloured(sys.stdout)
    emit(table_text(chip_table(chips()), width=width(), is_coloured=colour))
    return 0
