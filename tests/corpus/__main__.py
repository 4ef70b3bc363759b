"""Run the corpus and print its score: see the package's docstring."""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.corpus.case import Case, Counted
from tests.corpus.running import COUNTED, Outcome, count, run
from tests.corpus.score import keep
from tests.corpus.table import CASES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("--checkouts", type=Path, help="folder of checkouts, by repository's name")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="cases whose names contain one")
    parser.add_argument("--count", action="store_true", help="count on the CPU, and keep it")
    parser.add_argument("--write", action="store_true", help="keep the score, for the documents")
    parser.add_argument("--keep", type=Path, help="leave what each run wrote in this folder")
    arguments = parser.parse_args()
    cases = [
        case
        for case in CASES
        if arguments.only is None or any(name in case.name for name in arguments.only)
    ]
    checkouts = arguments.checkouts.resolve() if arguments.checkouts else None
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.keep or Path(temporary)).resolve()
        if arguments.count:
            return count_all(cases, folder, checkouts)
        outcomes = [show(run(case, fresh(folder, case), checkouts)) for case in cases]
    if arguments.write:
        keep(outcomes, CASES)
    return report(outcomes)


def fresh(folder: Path, case: Case) -> Path:
    own = folder / "".join(letter if letter.isalnum() else "_" for letter in case.name)
    own.mkdir(parents=True)
    return own


def show(outcome: Outcome) -> Outcome:
    word = "left out" if outcome.left_out else "right" if outcome.is_right else "WRONG"
    print(f"{word:9} {outcome.case.kind:8} {outcome.case.name}", flush=True)
    for text in (outcome.left_out, *outcome.faults):
        if text:
            print(f"          {text}")
    return outcome


def report(outcomes: list[Outcome]) -> int:
    for kind in ("script", "feature", "distributed"):
        ran = [each for each in outcomes if each.case.kind == kind and not each.left_out]
        print(f"{kind}: {sum(each.is_right for each in ran)} of {len(ran)} right")
    return int(any(each.faults for each in outcomes))


def count_all(cases: list[Case], folder: Path, checkouts: Path | None) -> int:
    rows = json.loads(COUNTED.read_text())
    failed = False
    for case in cases:
        if isinstance(case.figures, Counted):
            row = count(case, fresh(folder, case), checkouts)
            print(f"{case.name}: {row}", flush=True)
            if isinstance(row, str):
                failed = True
            else:
                rows[case.name] = row
    COUNTED.write_text(json.dumps(dict(sorted(rows.items())), indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
