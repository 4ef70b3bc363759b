"""Whether limits hold, as text: a line for each, and the lines of code behind those that do not."""

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from torchtally.gates import Finding
from torchtally.report.documents.limits import LimitsDocument, limits_part
from torchtally.report.grid import table_lines, wrap
from torchtally.report.report import Look, Report
from torchtally.report.terminal import join
from torchtally.units import format_number


def findings_text(
    findings: Sequence[Finding], *, width: int = 80, is_coloured: bool = False
) -> str:
    """Each limit, and whether it holds; those that do not hold last, each with its lines."""
    return join(list(_lines(findings, width)), is_coloured)


def findings_report(findings: Sequence[Finding]) -> Report:
    """Whether all limits hold, a sentence for each, and the lines behind those that do not."""
    holding = sum(finding.holds for finding in findings)
    evidence = {
        hash(finding.evidence.title): finding.evidence
        for finding in findings
        if finding.evidence is not None
    }

    def text(look: Look) -> str:
        return findings_text(findings, width=look.width, is_coloured=look.is_coloured)

    return Report(
        title=f"{holding} of {len(findings)} limits hold",
        facts=tuple(sentence(finding) for finding in findings),
        tables=tuple((str(number), table) for number, table in evidence.items()),
        text=text,
        document=lambda: LimitsDocument(limits_part(findings)),
    )


def sentence(finding: Finding) -> str:
    """Whether a limit holds, in one sentence."""
    limit, reading = finding.limit, finding.reading
    if reading.value is None:
        return f"{limit.text}: cannot be decided, {limit.name} is unknown ({reading.doubt})"
    value = format_number(reading.value, finding.unit)
    if finding.holds:
        return f"{limit.text}: holds, {value}"
    if not finding.is_decided:
        bound = {True: "at most", False: "at least", None: "counted as"}[reading.is_most]
        return f"{limit.text}: cannot be decided, {limit.name} is {bound} {value}; {reading.doubt}"
    where = f" in {finding.where}" if finding.where else ""
    return f"{limit.text}: DOES NOT HOLD, {limit.name} is {value}{where}"


def _lines(findings: Iterable[Finding], width: int) -> Iterator[Text]:
    ordered = sorted(findings, key=lambda finding: not finding.holds)
    shown: set[int] = set()
    for finding in ordered:
        style = "green" if finding.holds else "bold red"
        for number, line in enumerate(wrap(sentence(finding), width)):
            yield Text(line if number else line.strip(), style=style)
    for finding in ordered:
        table = finding.evidence
        if table is not None and hash(table.title) not in shown:
            shown.add(hash(table.title))
            yield from table_lines(table, width, is_brief=True)
