"""docs/published.md: every published figure beside ours, a table for each source.

python -m tests.plan.published.page                                on stdout
python -m tests.plan.published.page --write docs/published.md
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill

from tests.plan.published.figures import IMPLIED, ROWS
from tests.plan.published.row import TIGHT, Implied, Row, Source

WIDTH = 100

INTRODUCTION = """\
# Published figures

What papers, model cards and other planners printed, held against the closed forms of
`torchtally.plan`. The inputs are the authors' own; where they had to be inferred from the printed
figures, the source says so.

{counts}

A figure is *equal* where ours is the printed one to its last digit, and *rounds to it* where ours,
rounded as the authors round, is theirs. Any other difference is ours over theirs, less 1, and has a
letter that says where it comes from. FLOPs: a multiply and an add are two; attention in full. Sizes
in bytes are decimal (GB) or binary (GiB) as their authors print them. l, h, a, s, V: layers, width,
heads, sequence, vocabulary. N, D: parameters, tokens.

The rows are in `tests/plan/published/`, where each is a test: a figure must be as near as its row
says, and may not be allowed more than {tight} times the difference that it has. A source that was
seen quoted, not in the original, says so.
"""
NOT_REPRODUCED = """\
## Not reproduced, and why

Figures that the closed forms do not give. They are tested as well: the difference must stay what it
is.
"""
HOURS = """\
## What published hours imply

No author prints these. They follow from printed GPU-hours, and are there to plan with: the share of
the peak that a whole training made good, its restarts and everything else in the hours included.
"""
SECONDARY = "Seen in a secondary text."


def page(rows: Sequence[Row] = ROWS, implied: Sequence[Implied] = IMPLIED) -> str:
    """The whole page, in Markdown."""
    reproduced = [row for row in rows if row.is_reproduced]
    others = [row for row in rows if not row.is_reproduced]
    parts = [
        INTRODUCTION.format(counts=filled(counts(rows)), tight=TIGHT),
        *(section(source, of_source, "##") for source, of_source in by_source(reproduced)),
        NOT_REPRODUCED,
        *(section(source, of_source, "###") for source, of_source in by_source(others)),
        HOURS,
        *(implied_section(source, of_source) for source, of_source in implied_by_source(implied)),
    ]
    return "\n".join(parts)


def counts(rows: Sequence[Row]) -> str:
    within = sum(row.is_reproduced and row.is_rounding for row in rows)
    explained = sum(row.is_reproduced and not row.is_rounding for row in rows)
    sources = len({row.source.citation for row in rows})
    return (
        f"{len(rows)} figures from {sources} places: {within} come out to the printed digit, "
        f"{explained} within a tolerance that is explained, and {len(rows) - within - explained} "
        "do not come out, each with the reason."
    )


def by_source(rows: Iterable[Row]) -> list[tuple[Source, list[Row]]]:
    grouped: dict[Source, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.source, []).append(row)
    return list(grouped.items())


def implied_by_source(rows: Iterable[Implied]) -> list[tuple[Source, list[Implied]]]:
    grouped: dict[Source, list[Implied]] = {}
    for row in rows:
        grouped.setdefault(row.source, []).append(row)
    return list(grouped.items())


def section(source: Source, rows: Sequence[Row], level: str) -> str:
    reasons = list(dict.fromkeys(row.why for row in rows if row.why))
    letters = {why: chr(ord("a") + number) for number, why in enumerate(reasons)}
    heads = ["what", "from", "published", "ours", "difference", "why"]
    cells = [
        [
            row.what,
            row.inputs,
            f"{printed(row)} {row.unit.name}".strip(),
            computed(row),
            difference(row),
            letters.get(row.why, ""),
        ]
        for row in rows
    ]
    notes = [
        fill(f"- {letter}: {why}", WIDTH, subsequent_indent="  ") for why, letter in letters.items()
    ]
    return "\n".join(
        [*head(source, level), table(*without_empty(heads, cells)), *notes, *([""] * bool(notes))]
    )


def implied_section(source: Source, rows: Sequence[Implied]) -> str:
    heads = ["what", "published", "implied"]
    cells = [[row.what, row.published, f"{row.ours} {row.unit.name}"] for row in rows]
    return "\n".join([*head(source, "###"), table(heads, cells)])


def head(source: Source, level: str) -> list[str]:
    return [
        f"{level} {source.title}",
        "",
        filled(f"{source.citation}."),
        *([SECONDARY] if source.is_secondary else []),
        "",
        filled(source.about),
        "",
    ]


def printed(row: Row) -> str:
    """As the authors print it. Zeros that are not significant are a small exponent in the row."""
    if row.published.endswith(("e1", "e2")):
        return f"{int(row.digits):,}"
    return row.published


def computed(row: Row) -> str:
    """In the authors' notation, with as many digits more as it takes to see a difference."""
    if is_equal(row):
        return printed(row)
    mantissa, is_scientific, exponent = row.published.partition("e")
    decimals = len(mantissa.partition(".")[2])
    digits = sum(map(str.isdigit, mantissa.lstrip("0.")))
    more = 2 if digits <= 3 or (digits <= 5 and not row.is_rounding) else 1 if digits == 4 else 0
    if is_scientific and not row.published.endswith(("e1", "e2")):
        return f"{row.ours / 10.0 ** int(exponent):.{decimals + more}f}e{exponent}"
    thousands = "," if "," in row.published else ""
    return f"{row.ours:{thousands}.{decimals + more}f}"


def is_equal(row: Row) -> bool:
    return abs(row.difference) < 1e-12


def difference(row: Row) -> str:
    if is_equal(row):
        return "equal"
    if row.is_rounding:
        return "rounds to it"
    percent = 100 * row.difference
    return f"{percent:+.3f} %" if abs(percent) < 0.1 else f"{percent:+.1f} %"


def without_empty(
    heads: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """A table without the columns in which nothing stands."""
    kept = [place for place in range(len(heads)) if any(row[place] for row in rows)]
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in rows]


TEXTS = ("what", "from", "why")


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown whose columns stand below each other in the source too."""
    widths = [max(3, *map(len, column)) for column in zip(heads, *rows, strict=True)]
    aligns = ["<" if head in TEXTS else ">" for head in heads]

    def line(cells: Sequence[str]) -> str:
        padded = (f"{cell:{align}{width}}" for cell, align, width in zip(cells, aligns, widths, strict=True))  # noqa: E501  # fmt: skip
        return f"| {' | '.join(padded)} |"

    rule = [
        ":" + "-" * (width - 1) if align == "<" else "-" * (width - 1) + ":"
        for align, width in zip(aligns, widths, strict=True)
    ]
    return "\n".join([line(heads), line(rule), *map(line, rows), ""])


def filled(text: str) -> str:
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.plan.published.page", description="Make docs/published.md."
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there")
    given = parser.parse_args(arguments)
    if given.write is None:
        print(page(), end="")
    else:
        given.write.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
