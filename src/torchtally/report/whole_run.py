"""The page about a run, whatever it is of: simulated, recorded by a profiler, a memory snapshot."""

from collections.abc import Sequence

from torchtally.ledger import Ledger
from torchtally.report.ledger import ledger_report
from torchtally.report.report import Report


def run_report(
    ledger: Ledger,
    *,
    file: str = "",
    columns: Sequence[str] | None = None,
    is_elsewhere: bool = False,
) -> Report:
    """`file` and `columns` as in `ledger_report`. `is_elsewhere`: times on another chip are asked
    for, so a real run is shown like a simulated one.
    """
    if ledger.trace.measured is None or is_elsewhere:
        return ledger_report(ledger, file=file, columns=columns)
    if ledger.is_measured:
        from torchtally.report.explained import explained_report

        return explained_report(ledger, columns)
    from torchtally.report.snapshot import snapshot_report

    return snapshot_report(ledger)
