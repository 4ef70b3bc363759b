"""Changes one number in one formula of the planner at a time: the hand sums must notice each.

    python -m tests.plan.mutants          prints the score and the changes that nobody noticed

A formula is known by the call of `derive` that computes it, or by the function that `closed_form`
decorates, and its text. Hand sums are the tests of `HAND_SUMS` that pytest would run without
fixtures and hypothesis.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product
from operator import itemgetter
from pathlib import Path
from time import perf_counter

import torchtally.plan
from torchtally.plan import quantity

PLAN = Path(torchtally.plan.__file__).parent
HAND_SUMS = (
    "test_by_hand",
    "test_adapter_sums",
    "test_goodput_sums",
    "test_hybrid_sums",
    "test_prediction_sums",
    "test_preference_sums",
    "test_activations",
    "test_deep_linear",
    "test_mission",
    "inference.test_sums",
    "parallel.test_chip_memory",
    "parallel.test_communication",
    "parallel.test_frozen",
    "parallel.test_pipeline",
    "parallel.test_traffic",
)
Formula = tuple[str, int, str]
"""File and line of the call or of the decorator, and the formula's text."""
HandSum = Callable[[], None]


def hand_sums() -> Iterator[HandSum]:
    for name in HAND_SUMS:
        module = import_module(f"tests.plan.{name}")
        for test in [var for var in vars(module) if var.startswith("test_")]:
            yield from _cases(vars(module)[test])


def _cases(test: Callable[..., None]) -> Iterator[HandSum]:
    """One for every combination of its parameters; none of what hypothesis draws."""
    if hasattr(test, "hypothesis"):
        return
    choices = []
    for mark in getattr(test, "pytestmark", []):
        names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
        values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
        choices.append([dict(zip(names, value, strict=True)) for value in values])
    arguments = set(test.__code__.co_varnames[: test.__code__.co_argcount])
    for chosen in product(*choices):
        given = {name: value for choice in chosen for name, value in choice.items()}
        if set(given) == arguments:
            yield partial(test, **given)


Function = Callable[..., int | float]
COMPILED: Callable[[str, tuple[str, ...]], Function] = quantity._function


class Compiling:
    """Stands in for `quantity._function`: notes every formula, and changes one of them."""

    def __init__(self, changed: Formula | None = None, into: str = "") -> None:
        self.formulas: set[Formula] = set()
        self._changed, self._into = changed, into

    def __call__(self, formula: str, words: tuple[str, ...]) -> Function:
        caller = sys._getframe(2)
        path, line = caller.f_code.co_filename, caller.f_lineno
        if caller.f_code.co_name == "evaluate" and Path(path).name == "closed_form.py":
            declared = caller.f_locals["formula"].__code__
            path, line = declared.co_filename, declared.co_firstlineno
        place = Path(path)
        if place.name == "quantity.py" or PLAN not in place.parents:
            return COMPILED(formula, words)
        key = (str(place.relative_to(PLAN)), line, formula)
        self.formulas.add(key)
        return COMPILED(self._into if key == self._changed else formula, words)


def notices(sums: list[HandSum], compiling: Compiling) -> bool:
    """One of these sums fails. Whatever a wrong formula makes it raise is a failure."""
    quantity._function = compiling  # type: ignore[assignment]
    try:
        for hand_sum in sums:
            hand_sum()
    except Exception:
        return True
    finally:
        quantity._function = COMPILED  # type: ignore[assignment]
    return False


def reached() -> dict[Formula, list[HandSum]]:
    """Every formula that a hand sum computes, with the sums that do, the quickest first."""
    sums: dict[Formula, list[tuple[float, HandSum]]] = {}
    for hand_sum in hand_sums():
        compiling, start_s = Compiling(), perf_counter()
        assert not notices([hand_sum], compiling), hand_sum
        taken_s = perf_counter() - start_s
        for formula in compiling.formulas:
            sums.setdefault(formula, []).append((taken_s, hand_sum))
    return {
        formula: [hand_sum for _, hand_sum in sorted(those, key=itemgetter(0))]
        for formula, those in sums.items()
    }


def sites() -> set[tuple[str, int]]:
    """Every call of `derive` and every `closed_form` below `plan`, by file and line."""
    return {
        (str(path.relative_to(PLAN)), node.lineno)
        for path in PLAN.rglob("*.py")
        if path.name not in ("quantity.py", "closed_form.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("derive", "closed_form")
    }


def mutants(formula: str) -> Iterator[str]:
    """The formula with each of its numbers raised by one; without numbers, doubled.

    None of a model's own shapes, "3 * 64 * 64 + 3 * 64": there are no constants in it.
    """
    if "*" in formula and not re.search("[a-z]", formula):
        return
    numbers = list(re.finditer(r"(?<![\w.])\d+(\.\d+)?", formula))
    for number in numbers:
        raised = str(float(number[0]) + 1 if "." in number[0] else int(number[0]) + 1)
        yield formula[: number.start()] + raised + formula[number.end() :]
    if not numbers:
        yield f"2 * ({formula}) + 1"


def survivors(*, one_in: int = 1) -> tuple[list[str], list[str]]:
    """Formulas that no hand sum reaches, and changes that no hand sum notices.

    With `one_in=3` of every third change.
    """
    sums = reached()
    unreached = sorted(sites() - {formula[:2] for formula in sums})
    changes = [(formula, mutant) for formula in sorted(sums) for mutant in mutants(formula[2])]
    unnoticed = [
        f"{file}:{line}: {text}  ->  {mutant}"
        for (file, line, text), mutant in changes[::one_in]
        if not notices(sums[file, line, text], Compiling((file, line, text), mutant))
    ]
    tried = len(changes[::one_in])
    print(f"{tried - len(unnoticed)} of {tried} changes noticed")
    return [f"{file}:{line}" for file, line in unreached], unnoticed


if __name__ == "__main__":
    print(*(line for lines in survivors() for line in lines), sep="\n")
