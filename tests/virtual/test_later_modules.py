"""What is replaced in modules that are imported later, beside import hooks of the script's own."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtally.virtual.later_modules import patching
from torchtally.virtual.stand_ins import StandIn


class FinderOfPython2:
    """Has `find_module` alone, which Python looks for no more."""

    def find_module(self, name: str, path: object = None) -> None:
        raise AssertionError(f"asked for {name}")


def test_a_hook_without_find_spec_is_passed_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late.py").write_text("def answer(): return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [FinderOfPython2(), *sys.meta_path])
    with patching([("late", lambda module: [StandIn(module, "answer", lambda: 2)])]):
        late = __import__("late")
        answer: Callable[[], int] = late.answer
        assert answer() == 2
    assert late.answer() == 1
    monkeypatch.delitem(sys.modules, "late")
