"""The page about what `tally fix` tried and kept."""

from collections.abc import Iterator

from torchtally.brief.answer import smallest_chip
from torchtally.fixes.choosing import ChosenFixes, FixGoal, Tried
from torchtally.fixes.fix import ValueChange
from torchtally.report.documents.fixes import FixesDocument, SkippedFixPart
from torchtally.report.documents.tables import table_parts
from torchtally.report.explained import page_text
from torchtally.report.report import Report
from torchtally.table import Cell, Column, Table
from torchtally.units import Unit, format_bytes, format_fraction, format_seconds
from torchtally.views.difference import whole
from torchtally.views.summary import summarise

VALUES = {
    ValueChange.SAME: "the training computes the same bits",
    ValueChange.ROUNDED: "the same sums in another order: equal but for rounding",
    ValueChange.CHANGED: "numbers of fewer bits: the training changes",
}
COLUMNS = (
    Column("source_change", "change", Unit.NAME),
    Column("value_change", "values", Unit.WORD),
    Column("peak_reserved_bytes", "reserved", Unit.BYTES),
    Column("step_s", "step", Unit.SECONDS),
    Column("saved_share", "saved", Unit.FRACTION),
    Column("is_kept", "kept", Unit.WORD),
)


def fixes_report(choice: ChosenFixes, gpu: str, capacity_bytes: int, patch: str) -> Report:
    """Verdict, figures before and after, and every change that was run."""
    kept = choice.kept
    tables = [("tried", tried_table(choice))]
    before = choice.before.ledger
    if kept is not None and kept.trial.ledger is not None and before is not None:
        tables.insert(0, ("whole", whole(before, kept.trial.ledger)))
    names = [] if kept is None else [fix.name for fix in kept.patch.fixes]
    claim = title(choice, gpu, capacity_bytes)
    facts = tuple(sentences(choice))
    return Report(
        title=claim,
        facts=facts,
        tables=tuple(tables),
        text=lambda look: page_text(claim, facts, [table for _, table in tables], look),
        document=lambda: FixesDocument(
            chip=gpu,
            capacity_bytes=capacity_bytes,
            goal=choice.goal.value,
            fits=fits(choice, capacity_bytes),
            kept=names,
            patch=patch,
            skipped=[SkippedFixPart(each.name, each.reason) for each in choice.skipped],
            tables=table_parts(tables),
        ),
    )


def fits(choice: ChosenFixes, capacity_bytes: int) -> bool:
    """Whether the chip holds the script with what is kept."""
    if choice.proof is not None:
        return choice.proof.fits
    after = choice.before if choice.kept is None else choice.kept.trial
    return after.reserved_bytes <= capacity_bytes


def is_untried(choice: ChosenFixes) -> bool:
    """Whether the script fits as it is, where that is the goal: nothing was run."""
    return choice.goal is not FixGoal.FASTER and not choice.alone and not choice.skipped


def sentences(choice: ChosenFixes) -> Iterator[str]:
    """What each change that is kept does, and which of the others failed."""
    for fix in () if choice.kept is None else choice.kept.patch.fixes:
        yield f"{fix.name}: {fix.text} ({VALUES[fix.values]})."
    for each in choice.alone:
        if each.trial.ledger is None:
            last = each.trial.failure.splitlines()[-1:] or ["no output"]
            yield f"{each.patch.fixes[0].name}: the changed script fails, {last[0].strip()}"
    if is_untried(choice):
        ledger = choice.before.ledger
        smallest = None if ledger is None else smallest_chip(ledger, summarise(ledger), 0)
        yield "No change is needed" + (
            "." if smallest is None else f"; the smallest GPU that holds it is {smallest.name}."
        )
    if choice.skipped:
        reasons = "; ".join(f"{each.name} ({each.reason})" for each in choice.skipped)
        yield f"Not run: {reasons}."


def title(choice: ChosenFixes, gpu: str, capacity_bytes: int) -> str:
    """What is reached, in a sentence."""
    before, kept = choice.before, choice.kept
    if choice.goal is FixGoal.BUDGET:
        gpu = f"the budget on {gpu}"
    if is_untried(choice):
        sizes = f"{format_bytes(before.reserved_bytes)} of {format_bytes(capacity_bytes)}"
        return f"fits {gpu} as it is: {sizes}"
    if kept is None:
        what = (
            "makes the step shorter"
            if choice.goal is FixGoal.FASTER
            else "saves memory"
            if choice.goal is FixGoal.FIT
            else "stays within it"
        )
        claim = "fits" if fits(choice, capacity_bytes) else "does not fit"
        return f"{claim} {gpu} as it is; of {len(choice.alone)} changes that were run none {what}"
    after = kept.trial
    count = len(kept.patch.fixes)
    changes = "one change" if count == 1 else f"{count} changes"
    if choice.goal is not FixGoal.FASTER:
        does_fit = fits(choice, capacity_bytes)
        claim = "fits" if does_fit else "does not fit"
        sizes = f"{format_bytes(before.reserved_bytes)} to {format_bytes(after.reserved_bytes)}"
        return f"{claim} {gpu} with {changes}: {sizes} of {format_bytes(capacity_bytes)}"
    if before.step_s is None or after.step_s is None:
        return f"fits {gpu} with {changes}"
    saved = format_fraction(1 - after.step_s / before.step_s)
    steps = f"{format_seconds(before.step_s)} to {format_seconds(after.step_s)}"
    return f"{saved} faster on {gpu} with {changes}: {steps} a step"


def tried_table(choice: ChosenFixes) -> Table:
    """Each run: of a change alone, then of several."""
    rows: list[tuple[Cell, ...]] = [
        ("as it is", "", choice.before.reserved_bytes, choice.before.step_s, None, "")
    ]
    rows += [row_of(each, choice) for each in (*choice.alone, *choice.together)]
    title = "Runs with each change alone, and together; saved: of what was there before it"
    return Table(title=title, columns=COLUMNS, rows=tuple(rows))


def row_of(each: Tried, choice: ChosenFixes) -> tuple[Cell, ...]:
    fixes = each.patch.fixes
    values = max((fix.values for fix in fixes), key=list(type(fixes[0].values)).index)
    failed = each.trial.ledger is None
    return (
        " + ".join(fix.name for fix in fixes),
        values.value,
        None if failed else each.trial.reserved_bytes,
        each.trial.step_s,
        None if failed else each.gain,
        "failed" if failed else "yes" if each is choice.kept else "",
    )
