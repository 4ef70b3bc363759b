"""What `tally fit` found, as text: the answer first, then what was tried."""

from collections.abc import Sequence
from functools import partial

from torchtally.fit.chips import ChipSearch, Fleet, Margin
from torchtally.fit.survey import Survey
from torchtally.progress import printable
from torchtally.report.documents.fit import fit_document
from torchtally.report.grid import wrap
from torchtally.report.report import Report
from torchtally.units import format_bytes, format_fraction


def fit_text(fleet: Fleet, survey: Survey | None, margin: Margin, width: int) -> str:
    """The answer first, then what was tried; before it, why it is none to what was asked."""
    lines = [line for caveat in fleet.caveats for line in wrap(caveat, width, indent="")]
    if len(fleet.searches) > 1:
        lines += many(fleet, survey, margin, width)
    else:
        lines += one(fleet, fleet.searches[0], margin, width)
    for failed in failures(fleet):
        lines += wrap(failed, width)
    shown = next((probe for probe in fleet.probes.values() if probe.outcome.failure), None)
    if shown is not None and shown.outcome.output:
        lines.append(f"  The last lines of the script's output at {shown.value}:")
        lines += [f"    {printable(line)}" for line in shown.outcome.output.splitlines()]
    lines += wrap(remarks(fleet), width)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def one(fleet: Fleet, each: ChipSearch, margin: Margin, width: int) -> list[str]:
    name, chip = fleet.argument.name or "value", each.chip
    bracket, values = each.bracket, each.search.values
    assert bracket is not None
    kept = (
        f"{format_bytes(each.context_bytes)} are the CUDA context's, {margin_text(each, margin)} "
        "are kept."
    )
    total = format_bytes(chip.total_memory_bytes)
    if bracket.largest is None and bracket.too_large is None:
        return [f"the script fails at every {name} that was tried"]
    if bracket.largest is None:
        assert bracket.too_large is not None
        over_bytes = each.verdicts[bracket.too_large].peak_reserved_bytes - each.capacity_bytes
        lines = [f"no {name} fits {chip.name}: {bracket.too_large} is too large"]
        lines += wrap(
            f"It would reserve {format_bytes(over_bytes)} more than the "
            f"{format_bytes(each.capacity_bytes)} there are; of {total}, {kept}",
            width,
        )
    else:
        lines = [f"largest {name} that fits {chip.name}: {bracket.largest}"]
        peak = format_bytes(each.verdicts[bracket.largest].peak_reserved_bytes)
        beyond = f"It is the last one tried: --to {values.last} is the end of the range."
        if bracket.too_large is not None:
            is_close = each.takes_margin(bracket.too_large)
            how = "would leave less than the margin" if is_close else "does not fit"
            beyond = f"{bracket.too_large} {how}."
        lines += wrap(f"Peak reserved {peak} of {total}; {kept} {beyond}", width)
    if bracket.gave_up:
        lines += wrap("The script failed too often to go on: larger ones may fit.", width)
    return [*lines, *trial_lines(name, each)]


def trial_lines(name: str, each: ChipSearch) -> list[str]:
    rows = [("value", "peak allocated", "peak reserved", "fits", "free")]
    for value, verdict in sorted(each.verdicts.items()):
        free_bytes = each.capacity_bytes - verdict.peak_reserved_bytes
        rows.append(
            (
                str(value),
                format_bytes(verdict.peak_allocated_bytes),
                format_bytes(verdict.peak_reserved_bytes),
                each.fits_text(value),
                format_bytes(free_bytes) if verdict.fits else "-",
            )
        )
    return grid(rows)


def many(fleet: Fleet, survey: Survey | None, margin: Margin, width: int) -> list[str]:
    name = fleet.argument.name or "value"
    rows = [("memory", "largest", "peak reserved", "of memory", "chip")]
    for each in fleet.searches:
        bracket, total = each.bracket, each.chip.total_memory_bytes
        assert bracket is not None
        if bracket.largest is None:
            reason = "none" if bracket.too_large is not None else "fails"
            rows.append((format_bytes(total), reason, "-", "-", each.chip.name))
            continue
        peak = each.verdicts[bracket.largest].peak_reserved_bytes
        largest = f"{'>= ' * (bracket.too_large is None)}{bracket.largest}"
        if survey is not None and survey.computed:
            largest += "*" if survey.was_run(each) else " "
        rows.append((format_bytes(total), largest, format_bytes(peak),
                     format_fraction(peak / total), each.chip.name))  # fmt: skip
    kept = margin.text or format_bytes(margin.bytes)
    note = f"Kept on each: {kept} and what the CUDA context takes (0.5 to 0.6 GiB)."
    lines = [f"largest {name} that fits, by chip", *grid(rows), *wrap(note, width)]
    for sentence in basis(survey):
        lines += wrap(sentence, width)
    return lines


def basis(survey: Survey | None) -> list[str]:
    """Basis of the answers for several chips."""
    if survey is None:
        return []
    sentences = []
    for family in survey.computed:
        first = ", ".join(map(str, sorted(family.values)))
        chips = f"{len(family.chips)} chips" if len(family.chips) > 1 else family.chips[0].chip.name
        sentences.append(
            f"{chips}: computed from runs at {first} and {family.check_value} on "
            f"{family.simulated.chip.name}, whose allocations grow linearly: checked at "
            f"{family.check_value}, byte for byte."
        )
    if sentences:
        sentences.append("* was run. --verify runs both sides for every chip.")
    sentences += [
        f"{family.simulated.chip.name}: by runs only, since {family.why_not}."
        for family in survey.given_up
    ]
    questions = dict.fromkeys(
        question for family in survey.computed for question in family.questions
    )
    if questions:
        sentences.append(
            f"The script calls {', '.join(questions)}: chips of one compute capability are "
            "assumed to give it the same answers."
        )
    return sentences


def grid(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Numbers to the right; the last column of names to the left."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if rows[0][-1] == "chip":
            cells[-1] = row[-1]
        lines.append("  " + "  ".join(cells))
    return lines


def margin_text(each: ChipSearch, margin: Margin) -> str:
    kept = format_bytes(each.margin_bytes)
    return f"a margin of {margin.text} = {kept}" if margin.text else f"a margin of {kept}"


def failures(fleet: Fleet) -> list[str]:
    return [
        f"The script failed at {probe.value}, not for lack of memory: {probe.outcome.failure}"
        for probe in sorted(fleet.probes.values(), key=lambda probe: probe.value)
        if probe.outcome.failure
    ]


def remarks(fleet: Fleet) -> str:
    """What a reader has to know beside the numbers."""
    outcomes = [probe.outcome for probe in fleet.probes.values() if not probe.outcome.failure]
    world = fleet.request.world
    remarks_ = [f"Run as rank 0 of {world.size}."] if world.size > 1 else []
    if any(not search.search.is_monotone for search in fleet.searches):
        remarks_.append(
            "Memory does not grow with the value: a larger value fits where a smaller one does not."
        )
    if any(outcome.steps < fleet.request.steps for outcome in outcomes):
        least = min(outcome.steps for outcome in outcomes)
        remarks_.append(f"The script ended by itself after {least} training steps.")
    folded = max((outcome.folded for outcome in outcomes), default=0)
    if folded:
        remarks_.append(
            f"Up to {folded} evaluation passes per run repeat earlier ones and were not executed "
            "(--no-folding executes them)."
        )
    return " ".join(remarks_)


def fit_report(fleet: Fleet, survey: Survey | None, margin: Margin, vary: str) -> Report:
    """The answer in every format."""
    return Report(
        title=f"The largest {fleet.argument.name or 'value'} that fits",
        text=lambda look: fit_text(fleet, survey, margin, look.width),
        document=partial(fit_document, fleet, survey, vary),
    )
