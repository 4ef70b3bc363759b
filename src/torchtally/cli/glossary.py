"""`tally glossary`: what the terms of reports mean."""

from dataclasses import dataclass

from torchtally.cli.output import ReportOptions, write_report
from torchtally.options import Form, own

SUMMARY = "what the terms of reports mean: saved, reserved, exposed, MFU, ..."

EPILOG = """\
examples:
  tally glossary                      all terms, by subject
  tally glossary saved MFU            these
  tally glossary "optimizer state"    a term of two words
"""


@dataclass(frozen=True, kw_only=True)
class GlossaryOptions(ReportOptions):
    """Print what the terms of reports and documents mean."""

    terms: tuple[str, ...] = own("TERM", "default: all", Form("TERM"), nargs="*", default=())


def command(options: GlossaryOptions) -> int:
    """Print them."""
    from torchtally.report.glossary import glossary_report

    write_report(glossary_report(options.terms), options)
    return 0
