"""`tally gpus`: the chips that can be simulated, and what each one promises."""

import argparse
import sys
from typing import Any

from torchtally.cli.arguments import Subparsers, parsed

NAME = "gpus"
SUMMARY = "list the GPUs that can be simulated"

EPILOG = """\
examples:
  tally gpus
  tally gpus H100-SXM
  tally gpus --json | jq -r '.chips[] | select(.memory_bytes > 8e10) | .name'

chips of your own: name their file in the environment variable TALLY_CHIPS.
One with the name of ours takes its place. This is all that a chip needs:

  [[chip]]
  name = "Mine-1"
  vendor = "Me"
  architecture = "One"
  memory_bytes = 64_000_000_000
  memory_bandwidth_bytes_per_s = 1e12
  source = "https://example.com/mine"
  [chip.peaks]              # dense, in FLOP/s, by torch dtype; tf32 too
  bfloat16 = 100e12

It may also have, before [chip.peaks], among other things:

  compute_capability = [9, 0]         # makes it a CUDA device
  link = { name = "NVLink4", bytes_per_s_per_direction = 450e9 }
  node = { gpus = 8, name = "my server", network = { name = "InfiniBand",
           bytes_per_s_per_direction = 50e9 } }     # each chip's own share
  price = { usd_per_hour = 1.5, source = "our contract", as_of = "2026-06-30" }
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="List the chips of the hardware table: memory, bandwidth, dense bf16 peak;\n"
        "or tell all that is known of one, each number with its source.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "chip",
        nargs="?",
        metavar="CHIP",
        type=parsed(chip_of),
        help="tell all about this one, by any of its names",
    )
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="all that is known, with sources, as JSON to FILE or to stdout",
    )
    parser.set_defaults(command=command)


def chip_of(name: str) -> Any:
    """The chip of this name. Typed loosely, so that `--help` does not load the table."""
    from torchtally.chips import chip

    return chip(name)


def command(args: argparse.Namespace) -> int:
    """Print the table or the page of one chip, or write the document."""
    from torchtally.chips import known_chips
    from torchtally.cli.output import emit, is_coloured, width, write_or_emit

    if args.json is not None:
        from torchtally.report.document import dumps
        from torchtally.report.json import chips_document

        chips = known_chips() if args.chip is None else (args.chip,)
        write_or_emit(dumps(chips_document(chips)), args.json)
    elif args.chip is not None:
        from torchtally.report.chip import chip_text

        emit(chip_text(args.chip, width=width()))
    else:
        from torchtally.report.terminal import table_text
        from torchtally.views.chips import chip_table

        colour = is_coloured(sys.stdout)
        emit(table_text(chip_table(known_chips()), width=width(), is_coloured=colour))
    return 0
