"""What the code of a stream's operators is over time: phases, modules and lines, nested."""

from collections.abc import Iterable

from torchtally.ledger import Ledger
from torchtally.ledger.total import Path
from torchtally.table import Cell
from torchtally.views.slices import Slice, Stretch
from torchtally.views.stacks import Level, LevelKind, ModuleLevels, line_level


class CodeLevels:
    """Levels to which a stretch of operators belongs, the outermost first."""

    def __init__(self, ledger: Ledger) -> None:
        self._modules = ModuleLevels(ledger)
        self._known: dict[tuple[int, int], tuple[Level, ...]] = {}

    def of(self, stretch: Stretch) -> tuple[Level, ...]:
        entry = stretch.entries[0]
        phase, site = entry.op.phase, entry.site
        # By identity: hashing a site or an enum runs Python code, once for every operator.
        key = (id(site), id(phase))
        if key not in self._known:
            modules = self._modules.of(Path(site.module, site.module_class))
            outermost = Level(LevelKind.MODULE, str(phase))
            self._known[key] = (outermost, *modules, line_level(entry.line))
        return self._known[key]


def code_slices(stretches: Iterable[Stretch], levels: CodeLevels) -> list[Slice]:
    """Slices from the first operator of a level to the last before another, waits in between
    included.

    Each lies within the one that it is part of, which comes before it; none overlap otherwise.
    """
    done: list[tuple[int, int, Slice]] = []
    open_levels: list[tuple[Level, int]] = []
    end_ns = 0

    def close(depth: int) -> None:
        while len(open_levels) > depth:
            level, start_ns = open_levels.pop()
            done.append(
                (start_ns, len(open_levels), Slice(level.name, start_ns, end_ns, details(level)))
            )

    for stretch in stretches:
        here = levels.of(stretch)
        shared = 0
        for (level, _), other in zip(open_levels, here, strict=False):
            if level != other:
                break
            shared += 1
        close(shared)
        open_levels += [(level, stretch.start_ns) for level in here[shared:]]
        end_ns = stretch.end_ns
    close(0)
    return [slice for _, _, slice in sorted(done, key=lambda row: row[:2])]


def details(level: Level) -> dict[str, Cell]:
    return {"file": level.file, "line": level.line} if level.file else {}
