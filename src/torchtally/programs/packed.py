"""Programs as bytes: what several of them share is stored once, and rows stand as columns.

The modes of a class (batch of one, autocast, checkpointing) call the same operators in the same
modules. Programs that are packed together have one table of calls, sites, expressions and kinds of
storages, and are numbers of its rows. The storages that an operator reads count back from the
newest one, so that layers are alike in bytes too.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise, repeat
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from torchtally.errors import ProgramError
from torchtally.programs.program import RunProgram, filled, whole_numbers
from torchtally.programs.sizes import Size
from torchtally.trace import Call, Frame, Op, Phase, Site, Storage
from torchtally.trace.record import Index, Record

Row = TypeVar("Row", bound=Hashable)
PackedSite = tuple[str, str, tuple[Index, ...]]
"""(module, its class, numbers of the frames)."""
Numbers = tuple[Index, ...]


class OpColumns(Record, frozen=True):
    """The operators of a program, one after another; clocks count from 0."""

    calls: Numbers
    sites: Numbers
    phases: tuple[Phase, ...]
    streams: Numbers
    storages: Numbers
    """Of each operator's inputs and outputs, how far it is behind the newest one, counted from 1;
    0: on the host."""
    parts: Numbers = ()
    """Sites of the parts of each kernel that a compiler fused."""


class StorageColumns(Record, frozen=True):
    """The storages of a program, in the order in which they are allocated."""

    kinds: Numbers
    sizes: Numbers
    births: Numbers
    """Ticks since the one before was born."""
    lives: Numbers
    """Ticks from birth to death, counted from 1; 0: alive at the end."""


class PackedProgram(Record, frozen=True):
    """A program as numbers of rows that it shares with others."""

    rest: RunProgram
    """All that stands in no column."""
    ops: OpColumns
    storages: StorageColumns


class PackedPrograms(Record, frozen=True):
    """Programs, and the rows that they share."""

    sizes: tuple[Size, ...]
    calls: tuple[Call, ...]
    """In place of each whole number stands the number of its expression."""
    frames: tuple[Frame, ...]
    sites: tuple[PackedSite, ...]
    kinds: tuple[Storage, ...]
    """Storages without number, bytes, birth and death."""
    programs: tuple[msgspec.Raw, ...]
    """Each a `PackedProgram`; only the one that is asked for is decoded."""

    def program(self, number: Index) -> RunProgram:
        """One of the programs; a call and a storage of its trace have zeros for numbers.

        Raises ProgramError where the columns contradict each other.
        """
        try:
            packed = msgspec.msgpack.decode(self.programs[number], type=PackedProgram)
            return unpacked(self, packed)
        except (msgspec.MsgspecError, IndexError, ValueError) as error:
            raise ProgramError(f"program {number} of the file is damaged ({error}).") from error


# Packing.


class Numbering(dict[Row, int]):
    """Distinct rows, numbered in the order in which they come."""

    def number(self, row: Row) -> int:
        return self.setdefault(row, len(self))


def pack(programs: Iterable[RunProgram]) -> PackedPrograms:
    """The programs with one table of rows."""
    tables = SharedRows()
    packed = tuple(msgspec.Raw(msgspec.msgpack.encode(tables.program(each))) for each in programs)
    return PackedPrograms(
        sizes=tuple(tables.sizes),
        calls=tuple(tables.calls),
        frames=tuple(tables.frames),
        sites=tuple(tables.sites),
        kinds=tuple(tables.kinds),
        programs=packed,
    )


class SharedRows:
    """The rows of programs while they are packed."""

    def __init__(self) -> None:
        self.sizes: Numbering[Size] = Numbering()
        self.calls: Numbering[Call] = Numbering()
        self.frames: Numbering[Frame] = Numbering()
        self.sites: Numbering[PackedSite] = Numbering()
        self.kinds: Numbering[Storage] = Numbering()

    def program(self, program: RunProgram) -> PackedProgram:
        trace = program.trace
        sizes = [self.sizes.number(size) for size in program.sizes]
        calls = [
            self.calls.number(filled(call, (sizes[place] for place in places)))
            for call, places in zip(trace.calls, program.call_sizes, strict=True)
        ]
        sites = [self.site(site) for site in trace.sites]
        bare = replace(trace, calls=(), sites=(), ops=(), storages=())
        return PackedProgram(
            replace(program, trace=bare, sizes=(), call_sizes=(), storage_sizes=()),
            OpColumns(
                tuple(calls[op.call] for op in trace.ops),
                tuple(sites[op.site] for op in trace.ops),
                tuple(op.phase for op in trace.ops),
                tuple(op.stream for op in trace.ops),
                tuple(behind(trace.ops, trace.storages)),
                tuple(sites[each] for op in trace.ops for each in op.parts),
            ),
            StorageColumns(
                tuple(self.kinds.number(kind(each)) for each in trace.storages),
                tuple(sizes[place] for place in program.storage_sizes),
                tuple(b - a for a, b in pairwise([0, *(each.born for each in trace.storages)])),
                tuple(
                    0 if each.died is None else each.died - each.born + 1 for each in trace.storages
                ),
            ),
        )

    def site(self, site: Site) -> int:
        frames = tuple(map(self.frames.number, site.frames))
        return self.sites.number((site.module, site.module_class, frames))


def kind(storage: Storage) -> Storage:
    return replace(storage, number=0, requested_bytes=0, born=0, died=None, spare_bytes=0)


def behind(ops: Sequence[Op], storages: Sequence[Storage]) -> Iterator[int]:
    """Distances of the storages that operators name from the newest one of the moment."""
    newest = -1
    for op in ops:
        while newest + 1 < len(storages) and storages[newest + 1].born <= op.clock:
            newest += 1
        for number in (*op.inputs, *op.outputs):
            yield 0 if number < 0 else newest - number + 1


# Unpacking.


def unpacked(tables: PackedPrograms, packed: PackedProgram) -> RunProgram:
    """A program out of its columns. Raises ValueError or IndexError for contradictory ones."""
    columns = packed.ops
    sizes: Numbering[int] = Numbering()
    calls: Numbering[int] = Numbering()
    sites: Numbering[int] = Numbering()
    storages = tuple(storages_of(tables, packed.storages))
    storage_sizes = tuple(map(sizes.number, packed.storages.sizes))
    ops = tuple(ops_of(tables, columns, storages, calls, sites))
    templates = [tables.calls[number] for number in calls]
    call_sizes = tuple(tuple(map(sizes.number, whole_numbers(call))) for call in templates)
    return replace(
        packed.rest,
        trace=replace(
            packed.rest.trace,
            calls=tuple(filled(call, repeat(0)) for call in templates),
            sites=tuple(site_of(tables, number) for number in sites),
            ops=ops,
            storages=storages,
        ),
        sizes=tuple(tables.sizes[number] for number in sizes),
        call_sizes=call_sizes,
        storage_sizes=storage_sizes,
    )


def storages_of(tables: PackedPrograms, columns: StorageColumns) -> Iterator[Storage]:
    births = accumulate(columns.births)
    for number, (row, born, life) in enumerate(
        zip(columns.kinds, births, columns.lives, strict=True)
    ):
        died = None if life == 0 else born + life - 1
        yield replace(tables.kinds[row], number=number, born=born, died=died)


def ops_of(
    tables: PackedPrograms,
    columns: OpColumns,
    storages: Sequence[Storage],
    calls: Numbering[int],
    sites: Numbering[int],
) -> Iterator[Op]:
    """The operators, whose calls and sites are numbered as they come."""
    rest, parts = iter(columns.storages), iter(columns.parts)
    newest = -1
    rows = zip(columns.calls, columns.sites, columns.phases, columns.streams, strict=True)
    for clock, (row, site, phase, stream) in enumerate(rows):
        while newest + 1 < len(storages) and storages[newest + 1].born <= clock:
            newest += 1
        call = tables.calls[row]
        steps_back = list(islice(rest, len(call.inputs) + len(call.outputs)))
        if max(steps_back, default=0) > newest + 1:
            raise ValueError(f"operator {clock} names a storage that was not allocated before")
        named = tuple(newest - back + 1 if back else -1 for back in steps_back)
        inputs, outputs = named[: len(call.inputs)], named[len(call.inputs) :]
        fused = () if call.fused is None else call.fused.parts
        own = calls.number(row), sites.number(site)
        sites_of_parts = tuple(map(sites.number, islice(parts, len(fused))))
        yield Op(clock, *own, phase, inputs, outputs, stream, sites_of_parts)
    if next(rest, None) is not None:
        raise ValueError("operators name more storages than their calls have")


def site_of(tables: PackedPrograms, number: Index) -> Site:
    module, module_class, frames = tables.sites[number]
    return Site(module, module_class, tuple(tables.frames[frame] for frame in frames))
