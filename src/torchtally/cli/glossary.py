"""`tally glossary`: what the terms of reports mean."""

import argparse

from torchtally.cli.arguments import Subparsers
from torchtally.cli.output import add_format, write_report

NAME = "glossary"
SUMMARY = "what the terms of reports mean: saved, reserved, exposed, MFU, ..."

EPILOG = """\
examples:
  tally glossary                      all terms, by subject
  tally glossary saved MFU            these
  tally glossary "optimizer state"    a term of two words
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Print what the terms of reports and documents mean.",
        epilog=EPILOG,
    )
    parser.add_argument("terms", nargs="*", metavar="TERM", help="default: all")
    add_format(parser)
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Print them."""
    from torchtally.report.glossary import glossary_report

    write_report(glossary_report(args.terms), args)
    return 0
