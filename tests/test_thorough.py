"""What `make test` leaves out: it exists, and each test that is not named keeps its first case."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.thorough import ALONE, LONG, ONE_CASE_IN, without_thorough

REPOSITORY = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "name",
    [*ONE_CASE_IN, *ALONE, *(f"{file}::{test}" for file, tests in LONG.items() for test in tests)],
)
def test_what_is_left_out_is_there(name: str) -> None:
    file, _, test = name.partition("[")[0].partition("::")
    assert test == "*" or f"def {test}(" in (REPOSITORY / file).read_text(encoding="utf-8")


def test_what_holds_a_rule_instead_is_not_left_out_itself() -> None:
    left_out = {name.partition("[")[0].rpartition("::")[2] for name in ALONE if "[" not in name}
    left_out |= {test for tests in LONG.values() for test in tests}
    for name, instead in ALONE.items():
        assert not left_out & set(re.findall(r"\btest_\w+\b(?!\.py)", instead)), name


@pytest.mark.parametrize("file", LONG)
def test_a_file_keeps_a_test(file: str) -> None:
    tests = re.findall(r"^def (test_\w+)", (REPOSITORY / file).read_text(encoding="utf-8"), re.M)
    assert any(test not in LONG[file] and f"{file}::{test}" not in ALONE for test in tests)


def left(*names: str) -> list[str]:
    items: list[Any] = [SimpleNamespace(nodeid=name) for name in names]
    return [item.nodeid for item in without_thorough(items)[1]]


def test_one_case_in_so_many_is_kept() -> None:
    fit = "tests/cli/test_fit.py::test_nothing_is_left_behind"
    assert left(*(f"{fit}[{case}]" for case in "abcd")) == [f"{fit}[b]", f"{fit}[c]"]
    other = "tests/plan/test_config.py::test_any"
    assert left(f"{other}[a]", other.replace("any", "one"), f"{other}[b]") == [f"{other}[b]"]
    assert (
        left("tests/plan/test_other.py::test_it[a]", "tests/plan/test_other.py::test_it[b]") == []
    )


def test_of_many_cases_one_in_two_or_four_is_kept() -> None:
    test = "tests/plan/test_other.py::test_it"
    assert not left(*(f"{test}[{case}]" for case in range(2)))
    assert len(left(*(f"{test}[{case}]" for case in range(6)))) == 3
    assert len(left(*(f"{test}[{case}]" for case in range(40)))) == 30


def test_a_test_or_a_case_is_left_out_by_name() -> None:
    document = "tests/test_docs.py::test_a_document_holds"
    assert left(f"{document}[README.md]", f"{document}[docs/clusters.md]") == [
        f"{document}[docs/clusters.md]"
    ]
    assert left(
        "tests/test_benchmarks.py::test_peers", "tests/test_benchmarks.py::test_llama_70b"
    ) == ["tests/test_benchmarks.py::test_peers"]
