"""Names that loaded modules have imported functions by are read once for each module."""

import sys
from types import ModuleType

import pytest

from torchtally.virtual.aliases import ImportedFunctions, read_loaded_modules, replacing


def test_what_was_loaded_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the processes forked from a server, which has read all modules before."""
    read_loaded_modules()
    names: list[str] = []

    def read(_: ImportedFunctions, name: str, module: ModuleType) -> None:
        names.append(name)

    monkeypatch.setattr(ImportedFunctions, "_read_module", read)
    with replacing({}):
        assert not names
        monkeypatch.setitem(sys.modules, "loaded_later", ModuleType("loaded_later"))
    assert names == ["loaded_later"]
