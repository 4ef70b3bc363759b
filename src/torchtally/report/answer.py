"""Answers for a terminal: the sentence first, then its numbers, then what they rest on.

With `is_explained`, every formula twice: in words and with the numbers put in, and its source.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from torchtally.plan.quantity import FUNCTIONS, Quantity
from torchtally.plan.questions import Answer
from torchtally.progress import printable
from torchtally.report.documents.answer import answer_document
from torchtally.report.grid import INDENT, table_lines, wrap
from torchtally.report.prose import in_words
from torchtally.report.report import Look, Report
from torchtally.report.terminal import join
from torchtally.table import Column, Table
from torchtally.units import Unit, format_number

NAME_WIDTH = 30
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def answer_text(
    answer: Answer, *, is_explained: bool = False, width: int = 80, is_coloured: bool = False
) -> str:
    """The whole answer. The first line is the answer itself, however long."""
    return join(list(_lines(answer, is_explained, width)), is_coloured)


def headline(answer: Answer) -> str:
    """The answer in one sentence."""
    return in_words(answer.headline)


def _lines(answer: Answer, is_explained: bool, width: int) -> Iterator[Text]:
    for line in textwrap.wrap(printable(headline(answer)), width, subsequent_indent=INDENT):
        yield Text(line, style="bold")
    if answer.figures:
        yield Text()
        yield from _figures(answer.figures, width)
    for table in answer.tables:
        yield Text()
        yield from table_lines(table, width)
    if is_explained:
        yield Text()
        yield from _working(answer.working, width)
    yield from _bullets("Assumptions", answer.assumptions, width)
    yield from _bullets("Unknown, in no figure", answer.unknown, width)
    commands = answer.next
    if commands:
        yield Text()
        yield Text("Next", style="bold")
        yield from (Text(f"{INDENT}{command}") for command in commands)


def _figures(figures: Sequence[Quantity], width: int) -> Iterator[Text]:
    """A line for each number: its name, itself, and what a reader must know of it."""
    names = [printable(figure.name) for figure in figures]
    values = [format_number(figure.value, figure.unit) for figure in figures]
    name_width, value_width = max(map(len, names)), max(map(len, values))
    for figure, name, value in zip(figures, names, values, strict=True):
        head = f"{INDENT}{name:{name_width}}  {value:>{value_width}}"
        room = width - len(head) - 2
        notes = textwrap.wrap(printable(_note(figure)), room) if room >= 16 else []
        yield Text(f"{head}  {notes[0]}" if notes else head)
        yield from (Text(" " * (len(head) + 2) + note) for note in notes[1:])


def _note(quantity: Quantity) -> str:
    """Its own note, and those of what was given to it."""
    notes = [
        quantity.note,
        *(
            f"{term.name}: {term.note}"
            for _, term in quantity.terms
            if term.is_given and term.note and term.unit is Unit.USD_PER_HOUR
        ),
    ]
    return "; ".join(note for note in notes if note)


def answer_report(answer: Answer, *, is_explained: bool = False) -> Report:
    """A planner's answer; explained, with all its working."""

    def text(look: Look) -> str:
        return answer_text(
            answer, is_explained=is_explained, width=look.width, is_coloured=look.is_coloured
        )

    return Report(
        title=headline(answer),
        facts=tuple(fact for fact in (*answer.assumptions, *answer.unknown) if fact),
        tables=answer_tables(answer),
        text=text,
        document=lambda: answer_document(answer, headline(answer)),
    )


FIGURES = (
    Column("name", "figure", Unit.TEXT),
    Column("value", "value", Unit.WORD),
    Column("note", "note", Unit.TEXT),
)


def answer_tables(answer: Answer) -> tuple[tuple[str, Table], ...]:
    """The figures, each in its unit, and the answer's own tables."""
    rows = tuple(
        (figure.name, format_number(figure.value, figure.unit), _note(figure))
        for figure in answer.figures
    )
    figures = Table("Figures", FIGURES, rows)
    named = [(in_words(table.title), table) for table in answer.tables]
    return (("figures", figures), *named) if rows else tuple(named)


# The working -------------------------------------------------------------------------------------


def _working(steps: Sequence[Quantity], width: int) -> Iterator[Text]:
    sources = {
        source: n
        for n, source in enumerate(dict.fromkeys(step.source for step in steps if step.source), 1)
    }
    # Plain numbers are shown in their formulas; published and assumed ones are listed here.
    givens = [step for step in steps if step.is_given and (step.source or step.note)]
    if givens:
        yield Text("Given", style="bold")
        yield from _givens(givens, sources, width)
        yield Text()
    yield Text("Working", style="bold")
    for step in steps:
        if not step.is_given:
            yield from _step(step, sources, width)
    if sources:
        yield Text()
        yield Text("Sources", style="bold")
        for source, number in sources.items():
            yield from _hanging(f"[{number}] ", source, width)


def _givens(givens: Sequence[Quantity], sources: dict[str, int], width: int) -> Iterator[Text]:
    facts = dict.fromkeys(
        (quantity.name, quantity.value, quantity.unit, quantity.source, quantity.note)
        for quantity in givens
    )
    name_width = min(max(len(printable(pair[0])) for pair in facts), NAME_WIDTH)
    for name, value, unit, source, note in facts:
        marks = " ".join(
            remark for remark in (f"[{sources[source]}]" if source else "", note) if remark
        )
        head = f"{printable(name):{name_width}}  "
        yield from _hanging(head, f"{format_number(value, unit)}  {marks}".rstrip(), width)


def _step(step: Quantity, sources: dict[str, int], width: int) -> Iterator[Text]:
    """What it is: the formula in words, the numbers put in, and what comes out."""
    mark = f"  [{sources[step.source]}]" if step.source else ""
    value = format_number(step.value, step.unit)
    yield from _hanging(f"{printable(step.name)} ", f"= {spoken(step)}", width)
    yield from _hanging(INDENT, f"= {with_numbers(step)}", width)
    yield from _hanging(INDENT, f"= {value}{mark}", width)


def spoken(step: Quantity) -> str:
    """The formula with its terms called by their names."""
    names = {word: term.name for word, term in step.terms}
    return WORD.sub(
        lambda match: match[0] if match[0] in FUNCTIONS else names.get(match[0], match[0]),
        step.formula,
    )


def with_numbers(step: Quantity) -> str:
    """The formula with numbers for its terms, each in its unit."""
    terms = dict(step.terms)

    def number(match: re.Match[str]) -> str:
        term = terms.get(match[0])
        return match[0] if term is None else format_number(term.value, term.unit)

    return WORD.sub(number, step.formula)


# Prose -------------------------------------------------------------------------------------------


def _bullets(title: str, items: Sequence[str], width: int) -> Iterator[Text]:
    parts = [part for part in dict.fromkeys(items) if part]
    if parts:
        yield Text()
        yield Text(title, style="bold")
        for part in parts:
            yield from (Text(line) for line in wrap(part, width))


def _hanging(head: str, text: str, width: int) -> Iterator[Text]:
    """The head, and the text behind it; lines that follow stand below the text's beginning."""
    first = f"{INDENT}{head}"
    room = " " * min(len(first) + 2, 2 * len(INDENT) + 4)
    for line in textwrap.wrap(
        printable(text),
        max(width, 40),
        initial_indent=first,
        subsequent_indent=room,
        break_on_hyphens=False,
    ):
        yield Text(line)


# For programs ------------------------------------------------------------------------------------
