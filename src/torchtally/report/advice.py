"""Changes that were tried, to make a run fit or its network hidden, as text."""

from torchtally.fit.advisor import AS_IT_IS, Advisor
from torchtally.fit.network_advisor import NetworkAdvisor, TimedRun, comparison_table, timed_table
from torchtally.fit.results import results_table
from torchtally.ledger import Ledger
from torchtally.report.terminal import table_text


def advice_text(advisor: Advisor, width: int, *, is_coloured: bool) -> str:
    """The table of what was tried, and what could not be."""
    if not advisor.needed_bytes:
        ours = (failure for failure in advisor.failures if failure.startswith(f"{AS_IT_IS}:"))
        why = next(ours, "the script could not be rerun")
        return f"\nNo change could be tried: {why}\n"
    table = results_table(advisor.results, advisor.needed_bytes)
    text = "\n" + table_text(table, width=width, is_coloured=is_coloured)
    return text + "".join(f"  Not tried to the end: {failure}\n" for failure in advisor.failures)


def network_advice_text(
    advisor: NetworkAdvisor, ledger: Ledger, width: int, *, is_coloured: bool
) -> str:
    """Tables of what was tried, and what could not be; "" where nothing was worth a run."""
    text, changed = "", TimedRun.of(ledger)
    if advisor.unchanged is not None and changed is not None:
        table = comparison_table(changed, advisor.unchanged, advisor.what_ifs)
        text += "\n" + table_text(table, width=width, is_coloured=is_coloured)
    if advisor.results:
        table = timed_table(advisor.results)
        text += "\n" + table_text(table, width=width, is_coloured=is_coloured)
    return text + "".join(f"  Not tried to the end: {failure}\n" for failure in advisor.failures)
