"""`tally dtypes`: number formats, and what values become in them."""

import re
from dataclasses import dataclass

from torchtally.cli.arguments import Subparsers
from torchtally.cli.declared import declare
from torchtally.cli.output import ReportOptions, write_report
from torchtally.options import Form, own

NAME = "dtypes"
SUMMARY = "number formats: their bits and ranges, what values become in them"

EPILOG = """\
examples:
  tally dtypes                            all formats: bits, ranges, uses
  tally dtypes 0.1                        what one tenth becomes in each
  tally dtypes 65504 1/3 --of fp16,bf16   in these, as torch spells them or as here
  tally dtypes 2**-24 -1e-8 inf           powers of two, negative numbers, inf and nan
  tally dtypes 1 2 3 448 --of mxfp8       numbers that share a scale
  tally dtypes 0.1 --json | jq '.values[0].becomes.bf16.value'

A value is taken exactly: 0.1 is one tenth. Rounding is to nearest, ties to even. In formats with
blocks (mxfp8, mxfp6, mxfp4, nvfp4, int8, int4) the values are one tensor, cut into blocks in order.
"""


@dataclass(frozen=True, kw_only=True)
class DtypesOptions(ReportOptions):
    """What `tally dtypes` is asked."""

    values: tuple[str, ...] = own(
        "VALUE", "as 0.1, 1e-8, 1/3 or 2**-14", Form("VALUE"), nargs="*", default=()
    )
    of: str = own("--of", "only these formats (fp16,bfloat16,mxfp8)", Form("A,B"), default="")


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Show number formats from fp64 to int4, or what values become in them: the\n"
        "nearest number, its error, its bits, under- and overflow. Without PyTorch, exact.",
        epilog=EPILOG,
    )
    # What begins with a minus and is none of our options is a number: argparse knows -1, not -1e-8.
    parser._negative_number_matcher = re.compile(r"-(\d|\.\d|inf|nan)", re.I)
    declare(parser, DtypesOptions, command)


def command(options: DtypesOptions) -> int:
    """Print the formats, or what the values become."""
    from torchtally.report.number_formats import comparison_report
    from torchtally.views.number_formats import dtypes

    names = [name for name in options.of.split(",") if name.strip()]
    write_report(comparison_report(dtypes(*options.values, formats=names)), options)
    return 0
