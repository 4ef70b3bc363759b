"""Storages alive at a tick, each with the operator that allocated it."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from torchtally.ledger import Entry, Ledger, Line, Path, line_of
from torchtally.memory import Category
from torchtally.trace import Role, Storage
from torchtally.views.modules import OUTSIDE

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Holding:
    """A storage that is alive, and where it comes from."""

    storage: Storage
    category: Category
    entry: Entry | None
    """The operator that allocated it; None where none did (the run ended before it came)."""

    @property
    def line(self) -> Line | None:
        """The line that allocated it; a gradient's is its forward line."""
        return None if self.entry is None else line_of(self.entry)


def holdings(ledger: Ledger, tick: int) -> list[Holding]:
    """All that is alive at a tick on the accounted device, largest first."""
    entry_at = {entry.op.clock: entry for entry in ledger.entries if entry.is_first}
    return [
        Holding(storage, category, entry_at.get(storage.born))
        for storage, category in ledger.memory.alive_at(tick)
    ]


def owner_of(ledger: Ledger) -> Callable[[Holding], Path]:
    """The module that a storage belongs to: of a parameter or buffer the one whose it is, of all
    else the one whose forward (or its backward) allocated it.
    """
    class_of: dict[str, str] = {}
    for site in ledger.trace.sites:
        if site.module_class:
            class_of.setdefault(site.module, site.module_class)

    def owner(holding: Holding) -> Path:
        storage = holding.storage
        if storage.name and storage.role in (Role.PARAMETER, Role.BUFFER):
            module = storage.name.rpartition(".")[0]
            return Path(module, class_of.get(module, ""))
        if holding.entry is None:
            return OUTSIDE
        return Path(holding.entry.site.module, holding.entry.site.module_class)

    return owner


def group_holdings(
    holdings: Iterable[Holding], key: Callable[[Holding], Key]
) -> list[tuple[Key, list[Holding]]]:
    """The holdings in groups, the one of most bytes first."""
    groups: dict[Key, list[Holding]] = {}
    for holding in holdings:
        groups.setdefault(key(holding), []).append(holding)
    return sorted(groups.items(), key=lambda group: -bytes_of(group[1]))


def bytes_of(holdings: Iterable[Holding]) -> int:
    return sum(holding.storage.bytes for holding in holdings)
