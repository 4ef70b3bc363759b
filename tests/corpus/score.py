"""The score of the corpus: kept in `score.json` by a full run, shown in the documents."""

import json
from collections.abc import Sequence
from pathlib import Path

from tests.corpus.case import Case, Counted
from tests.corpus.running import Outcome

SCORE = Path(__file__).with_name("score.json")

KINDS = ("script", "feature", "distributed")
"""In the order of the documents."""

Row = dict[str, str | list[str]]


def row(outcome: Outcome) -> Row:
    case = outcome.case
    return {
        "name": case.name,
        "kind": case.kind,
        "source": source(case),
        "expected": "FlopCounterMode" if isinstance(case.figures, Counted) else "by hand",
        "outcome": "right" if outcome.is_right else "left out" if outcome.left_out else "wrong",
        "faults": reasons(outcome),
    }


def reasons(outcome: Outcome) -> list[str]:
    if outcome.left_out:
        return [outcome.left_out]
    return [outcome.case.known_fault] if outcome.case.known_fault else list(outcome.faults)


def source(case: Case) -> str:
    if case.repository is not None:
        return case.repository
    return ", ".join(case.packages) or "transformers and torch"


def keep(outcomes: list[Outcome], cases: Sequence[Case]) -> None:
    """Those that ran; the others stay as they were."""
    rows = {str(row["name"]): row for row in kept()}
    rows |= {outcome.case.name: row(outcome) for outcome in outcomes}
    ordered = [rows[case.name] for case in cases if case.name in rows]
    SCORE.write_text(json.dumps(ordered, indent=2) + "\n")


def kept() -> list[Row]:
    rows: list[Row] = json.loads(SCORE.read_text())
    return rows


def right(rows: list[Row], kind: str) -> str:
    """As "40 of 43". Those that were left out were not right."""
    of_kind = [row for row in rows if row["kind"] == kind]
    return f"{sum(row['outcome'] == 'right' for row in of_kind)} of {len(of_kind)}"


def score_line() -> str:
    rows = kept()
    return (
        "In a [corpus](docs/corpus.md) of scripts as people run them, parameters, FLOPs and step "
        f"are right in\n{right(rows, 'script')} runs of scripts and "
        f"{right(rows, 'feature')} features of PyTorch, and in "
        f"{right(rows, 'distributed')} ways to train on several GPUs."
    )


def score_table() -> str:
    rows = kept()
    lines = ["| | from | expected figures | outcome |", "|---|---|---|---|"]
    lines += [
        f"| {row['name']} | {row['source']} | {row['expected']} | {told(row)} |"
        for row in sorted(rows, key=lambda row: KINDS.index(row["kind"]))
    ]
    return "\n".join(lines)


def told(row: Row) -> str:
    return "; ".join([str(row["outcome"]), *row["faults"]])
