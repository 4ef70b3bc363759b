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


class Library:
    """As cffi's: says that it is a module, takes no weak reference, and makes what is asked of."""

    __slots__ = ()

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return ModuleType

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise AssertionError("its functions would be made")


def test_a_library_of_cffi_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_openssl.lib", Library())
    assert isinstance(sys.modules["_openssl.lib"], ModuleType)
    with replacing({len: len}):
        read_loaded_modules()
