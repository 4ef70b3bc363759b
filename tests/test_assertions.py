"""Every test asserts: itself, by pytest.raises, or by a helper called assert_* or check_*."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
EXPECTING = frozenset({"raises", "warns", "fail"})
"""Of pytest."""
OTHERS = frozenset({"assert_close"})
"""Of other packages: torch.testing."""


@dataclass(frozen=True, slots=True)
class Function:
    """What a test or a helper does that may fail."""

    place: str
    name: str
    asserts: bool
    raises: bool
    calls: frozenset[str]


def functions(place: str, tree: ast.Module) -> Iterator[Function]:
    """Tests, and helpers whose name says that they assert."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith(
            ("test_", "assert_", "check_")
        ):
            parts = list(ast.walk(node))
            called = [part.func for part in parts if isinstance(part, ast.Call)]
            yield Function(
                f"{place}:{node.lineno}",
                node.name,
                any(isinstance(part, ast.Assert) for part in parts),
                any(isinstance(part, ast.Raise) for part in parts),
                frozenset(
                    [each.id for each in called if isinstance(each, ast.Name)]
                    + [each.attr for each in called if isinstance(each, ast.Attribute)]
                ),
            )


def silent_tests(sources: Mapping[str, str]) -> list[str]:
    """Tests in which nothing can fail but an exception."""
    every = [each for name, text in sources.items() for each in functions(name, ast.parse(text))]
    tests = [each for each in every if each.name.startswith("test_")]
    asserting = asserting_helpers([each for each in every if not each.name.startswith("test_")])
    return [
        f"{test.place}: {test.name}"
        for test in tests
        if not (test.asserts or test.calls & (asserting | EXPECTING))
    ]


def asserting_helpers(helpers: Iterable[Function]) -> frozenset[str]:
    """Names of those that assert or raise, or that call one that does."""
    names, before = OTHERS, frozenset[str]()
    while names != before:
        before = names
        names |= {
            helper.name
            for helper in helpers
            if helper.asserts or helper.raises or helper.calls & (names | EXPECTING)
        }
    return names


def test_every_test_asserts() -> None:
    sources = {
        str(file.relative_to(TESTS)): file.read_text(encoding="utf-8")
        for file in sorted(TESTS.rglob("*.py"))
    }
    assert silent_tests(sources) == []


def test_a_test_that_asserts_nothing_is_found() -> None:
    source = """
def same(one, other):
    assert one == other

def check_nothing(value):
    return value

def assert_both(one, other):
    assert_same(one, other)

def assert_same(one, other):
    assert one == other

def test_by_itself():
    assert 1 + 1 == 2

def test_by_an_error():
    with pytest.raises(ValueError):
        int("x")

def test_by_a_helper():
    assert_both(1, 1)

def test_by_a_helper_that_does_not_say_so():
    same(1, 1)

def test_by_a_helper_that_does_not():
    check_nothing(1)

def test_that_calls_alone():
    int("1")
"""
    assert silent_tests({"test_it.py": source}) == [
        "test_it.py:24: test_by_a_helper_that_does_not_say_so",
        "test_it.py:27: test_by_a_helper_that_does_not",
        "test_it.py:30: test_that_calls_alone",
    ]
