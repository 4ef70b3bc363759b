"""Stacks as lines of text, which flamegraph.pl, inferno and speedscope read.

A line is the names of a stack from the outermost on, with ";" between them, a space, and a whole
number: ns, FLOPs or bytes (https://github.com/brendangregg/FlameGraph).
"""

from torchtally.ledger import Ledger
from torchtally.progress import printable
from torchtally.report.exports import Exported, Wanted
from torchtally.views.stacks import Level, stacks

SUMMARY = "stacks as text, of --of QUANTITY, for flamegraph.pl, inferno, speedscope"
SUFFIX = ".folded.txt"
IS_OF_A_QUANTITY = True


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """Each stack once. Raises UsageError for an unknown quantity, and for unknown times."""
    totals = stacks(ledger, wanted.quantity or "time")
    lines = [
        f"{';'.join(map(folded_name, levels))} {amount}\n"
        for levels, amount in totals.merge().items()
    ]
    return Exported({"": "".join(lines)}, (totals.missing,) if totals.missing else ())


def folded_name(level: Level) -> str:
    """Name without what separates names, and without line breaks."""
    return printable(level.name).replace(";", ",")
