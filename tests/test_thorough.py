"""What `make test` leaves out: by markers, and each file keeps a test."""

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.thorough import without_thorough

TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("test_*.py"))


@cache
def marks_by_test(file: Path) -> dict[str, list[ast.expr]]:
    """Each test of a file with its markers of this kind that name no cases."""
    return {
        node.name: [mark for mark in node.decorator_list if is_whole(mark)]
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def is_whole(mark: ast.expr) -> bool:
    keywords = mark.keywords if isinstance(mark, ast.Call) else ()
    is_thorough = ast.unparse(mark).startswith("pytest.mark.thorough")
    return is_thorough and not any(keyword.arg == "cases" for keyword in keywords)


def test_what_holds_a_rule_instead_is_not_left_out_itself() -> None:
    tests = [test for file in FILES for test in marks_by_test(file).items()]
    texts = " ".join(ast.unparse(mark) for _, marks in tests for mark in marks)
    instead = set(re.findall(r"\btest_\w+\b(?!\.py)", texts))
    assert instead
    assert not instead & {name for name, marks in tests if marks}


def test_a_file_keeps_a_test() -> None:
    """Or it says for each of its tests which other file's holds the rule."""
    for file in FILES:
        marks = list(marks_by_test(file).values())
        says_instead = all(isinstance(mark, ast.Call) for each in marks for mark in each)
        assert not marks or not all(marks) or says_instead, file


def item(name: str, *marks: pytest.MarkDecorator) -> Any:
    """A test or case with its markers, the closest first."""

    def of_kind(kind: str) -> list[pytest.Mark]:
        return [mark.mark for mark in marks if mark.name == kind]

    return SimpleNamespace(
        nodeid=name,
        iter_markers=of_kind,
        get_closest_marker=lambda kind: next(iter(of_kind(kind)), None),
    )


def left(*names: str, marks: tuple[pytest.MarkDecorator, ...] = ()) -> list[str]:
    return [each.nodeid for each in without_thorough([item(name, *marks) for name in names])[1]]


def test_one_case_in_so_many_is_kept() -> None:
    """The test's own marker counts before its file's."""
    cases = [f"test_it[{case}]" for case in "abcd"]
    one_in_3, one_in_2 = pytest.mark.one_case_in(3), pytest.mark.one_case_in(2)
    assert left(*cases, marks=(one_in_3, one_in_2)) == ["test_it[b]", "test_it[c]"]
    assert left("test_it[a]", "test_one", "test_it[b]", marks=(one_in_3,)) == ["test_it[b]"]
    assert left("test_it[a]", "test_it[b]") == []


def test_of_many_cases_one_in_three_or_six_is_kept() -> None:
    assert not left(*(f"test_it[{case}]" for case in range(2)))
    assert len(left(*(f"test_it[{case}]" for case in range(6)))) == 4
    assert len(left(*(f"test_it[{case}]" for case in range(40)))) == 33


def test_a_test_or_a_case_is_left_out_by_name() -> None:
    cases = pytest.mark.thorough(cases=("b",))
    assert left("test_it[a]", "test_it[b]", marks=(cases,)) == ["test_it[b]"]
    assert left("test_it[a]", "test_it[b]", marks=(pytest.mark.thorough,)) == [
        "test_it[a]",
        "test_it[b]",
    ]


def test_a_case_that_is_not_there_is_an_error() -> None:
    with pytest.raises(pytest.UsageError, match=r"no such cases: \['test_it\[c\]'\]"):
        left("test_it[a]", marks=(pytest.mark.thorough(cases=("c",)),))
