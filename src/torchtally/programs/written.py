"""The trace of a run of any number of layers, written out of a program.

The ends, the first and the last layer are written once, the middle layer as often as there are
layers between. What an operator refers to is found by its distance: a residual that the next layer
reads is read by the next one of every copy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter

from msgspec.structs import replace

from torchtally.chips import Chip, chip
from torchtally.errors import ProgramError
from torchtally.memory.workspace import scratch, scratch_before_results
from torchtally.programs.parts import LAYERS, SCRATCH_NAME, Key, Sections, cut
from torchtally.programs.placed import placed
from torchtally.programs.program import RunProgram
from torchtally.programs.sizes import RANKS, Symbols, value, with_shares
from torchtally.trace import Call, Op, Role, Site, Storage, StreamWait, TensorSpec, Trace, World

FIRST, MIDDLE, LAST = range(LAYERS)
Place = tuple[int, int | None]
"""(position of the recorded operator, layer that it is written for; None: the ends)."""
Name = tuple[Key | int, int | None]
"""(what a storage is in its layer, the layer); (its recorded number, None) in the ends."""
Item = tuple[int, int | None]
"""(place in a recorded list, layer that it is written for; None: of no layer)."""


def write(program: RunProgram, symbols: Symbols, modules: int, world: World | None = None) -> Trace:
    """The run at these sizes, with so many modules in its list of layers; of a program whose ranks
    are a size, on the ranks of `world`.

    Raises ProgramError for fewer than recorded, and for sizes of which none were.
    """
    further, rest = divmod(modules - program.modules, program.period)
    if further < 0:
        raise ProgramError(
            f"a program is written out with at least {program.modules} layers, got {modules}.\n"
            "Trace a smaller model itself: tally run."
        )
    if rest:
        raise ProgramError(
            f"the program has periods of {program.period} layers and {program.modules} at least: "
            f"{modules} leave {rest} over."
        )
    for symbol, unit in program.units.items():
        if symbol not in symbols:
            raise ProgramError(f"the program needs a value for {symbol}.")
        if symbols[symbol] % unit or symbols[symbol] < 2:
            raise ProgramError(
                f"the program was recorded at multiples of {unit} from 2 on for {symbol}, got "
                f"{symbols[symbol]}: other operators run there.\nRecord it at such a size."
            )
    for symbol, number in program.fixed.items():
        if symbols.get(symbol, number) != number:
            raise ProgramError(
                f"the program was recorded at {symbol} {number} alone, got {symbols[symbol]}.\n"
                "Record it at another."
            )
    known = with_shares(symbols)
    try:
        numbers = program.numbers(symbols)
        wholes = {number: value(size, known) for number, size in program.whole_sizes.items()}
    except ValueError as error:
        raise ProgramError(f"the program is for other sizes: {error}.") from error
    trace = Writing(program, numbers, LAYERS + further, wholes).trace()
    if world is not None and RANKS in program.units:
        everyone = tuple(range(world.size))
        groups = tuple(replace(group, ranks=everyone) for group in trace.groups)
        trace = replace(trace, world=world, groups=groups)
    return placed(trace)


@dataclass(slots=True)
class Writing:
    """A trace as it is written, operator by operator."""

    program: RunProgram
    numbers: Sequence[int]
    """What the program's expressions are."""
    layers: int
    wholes: Mapping[int, int]
    """Of storages that are a rank's share: elements of the whole."""
    parts: Sections = field(init=False)
    chip: Chip = field(init=False)
    ticks: dict[Place, int] = field(init=False)
    """In the order of the operators."""
    site_layers: list[int | None] = field(init=False)
    """The recorded layer of each site."""
    storages: list[Storage] = field(default_factory=list)
    number_of: dict[Name, int] = field(default_factory=dict)
    calls: dict[Call, int] = field(default_factory=dict)
    sites: dict[Site, int] = field(default_factory=dict)
    _templates: dict[int, Call] = field(default_factory=dict)
    _scratch: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict)
    _sites: dict[Place, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.program
        self.parts = cut(self.recorded, program.modules, program.period, program.lead)
        self.chip = chip(self.recorded.chip)
        self.ticks = {place: tick for tick, place in enumerate(self.places())}
        self.site_layers = [self.parts.stacks.layer_in(site.module) for site in self.recorded.sites]

    @property
    def recorded(self) -> Trace:
        return self.program.trace

    # Which operators, for which layers.

    def places(self) -> Iterator[Place]:
        """Every operator in the order in which it runs."""
        position, of = 0, self.parts.of
        while position < len(of):
            part = of[position]
            if part is None:
                yield position, None
                position += 1
                continue
            sweep = part[0]
            is_upwards = part[1] == FIRST
            for copy in range(self.layers) if is_upwards else reversed(range(self.layers)):
                start, stop = self.parts.ranges[sweep, self.recorded_layer(copy)]
                yield from ((each, copy) for each in range(start, stop))
            position = max(self.parts.ranges[sweep, layer][1] for layer in range(LAYERS))

    def recorded_layer(self, layer: int) -> int:
        """The recorded layer that a written one is a copy of."""
        return FIRST if layer == 0 else LAST if layer == self.layers - 1 else MIDDLE

    def layer_seen(self, layer: int, base: int | None, copy: int | None) -> int:
        """The written layer that a recorded one is, seen from a copy of the recorded `base`."""
        last = self.layers - 1
        if base == MIDDLE and copy is not None:
            return copy + layer - MIDDLE
        if layer == FIRST:
            return 0
        if layer == LAST:
            return last
        if base is None:
            raise ProgramError("the ends refer to a middle layer, which no list has.")
        return MIDDLE if base == FIRST else last - 1

    def copies(self, layer: int) -> range:
        """The written layers that a recorded one stands for."""
        return {
            FIRST: range(1),
            MIDDLE: range(1, self.layers - 1),
            LAST: range(self.layers - 1, self.layers),
        }[layer]

    def tick_seen(self, position: int, base: int | None, copy: int | None) -> int:
        """The tick of a recorded operator, seen from a copy of the recorded layer `base`."""
        part = self.parts.of[position]
        if part is None:
            return self.ticks[position, None]
        layer = self.layer_seen(part[1], base, copy)
        same = self.parts.moved(position, self.recorded_layer(layer))
        if same is None:
            raise self.error(position, "has no like in the middle layer")
        return self.ticks[same, layer]

    # What they are called with.

    def name(self, number: int, position: int, copy: int | None) -> Name:
        """The storage that an operator's copy refers to where the recorded one does to this."""
        owner = self.parts.owner[number]
        if owner is None:
            return number, None
        part, key = self.parts.of[position], self.parts.key[number]
        base = None if part is None else part[1]
        if base == MIDDLE and (MIDDLE, key) not in self.parts.peers:
            base = None  # made in the first or the last layer alone, for all of them
        try:
            return key, self.layer_seen(owner, base, copy)
        except ProgramError as error:
            raise self.error(position, "reads one of several layers alike") from error

    def written(self, numbers: Sequence[int], position: int, copy: int | None) -> tuple[int, ...]:
        """Numbers of the storages, from the recorded ones."""
        return tuple(
            number if number < 0 else self.known(self.name(number, position, copy), position)
            for number in numbers
        )

    def known(self, name: Name, position: int) -> int:
        number = self.number_of.get(name)
        if number is None:
            raise self.error(position, f"reads {name}, which was not allocated before")
        return number

    def error(self, position: int, what: str) -> ProgramError:
        op = self.recorded.ops[position]
        return ProgramError(
            f"{self.recorded.script}: {self.parts.names[position]} (operator {position}, in "
            f"{self.recorded.sites[op.site].module!r}) {what}.\n"
            "The layers of this model cannot be written out from three of them."
        )

    def template(self, number: int) -> Call:
        """The recorded call at the sizes asked for."""
        call = self._templates.get(number)
        if call is None:
            call = self._templates[number] = self.program.call(number, self.numbers)
        return call

    def trace(self) -> Trace:
        """The whole, without what the allocator makes of it."""
        ops = [self.op(tick, *place) for place, tick in self.ticks.items()]
        self.die()
        recorded, further = self.recorded, self.layers - LAYERS
        of: dict[int, list[int]] = {len(recorded.ops): [len(ops)]}
        for (position, _), tick in self.ticks.items():
            of.setdefault(position, []).append(tick)
        return replace(
            recorded,
            calls=tuple(self.calls),
            sites=tuple(self.sites),
            ops=tuple(ops),
            storages=tuple(self.storages),
            step_ends=tuple(of[tick - 1][-1] + 1 for tick in recorded.step_ends),
            differentiated=tuple(sorted(t for each in recorded.differentiated for t in of[each])),
            waits=tuple(sorted(t for each in recorded.waits for t in of[each])),
            stream_waits=tuple(self.stream_waits(len(ops))),
            host_ops=recorded.host_ops + self.program.host_ops_per_layer * further,
            placeholders=tuple(
                replace(each, count=each.count + reads * further)
                for each, reads in zip(
                    recorded.placeholders, self.program.reads_per_layer, strict=True
                )
            ),
        )

    def stream_waits(self, end: int) -> Iterator[StreamWait]:
        """The waits of streams for each other, before the copies of the operators they preceded."""
        waits: dict[int, list[StreamWait]] = {}
        for wait in self.recorded.stream_waits:
            waits.setdefault(wait.tick, []).append(wait)
        places = [*self.ticks.items(), ((len(self.recorded.ops), None), end)]
        for (position, copy), tick in places:
            for wait in waits.get(position, ()):
                until = tick
                if wait.until != wait.tick:
                    part = self.parts.of[position] if position < len(self.parts.of) else None
                    base = None if part is None else part[1]
                    until = self.tick_seen(wait.until - 1, base, copy) + 1 if wait.until else 0
                yield replace(wait, tick=tick, until=until)

    def op(self, tick: int, position: int, copy: int | None) -> Op:
        """The operator of a place, and the storages that it allocates."""
        recorded = self.recorded.ops[position]
        call = self.template(recorded.call)
        items = self.parts.lists.get(position)
        if items is not None:
            return self.listed(tick, position, call, items)
        number = self.calls.setdefault(call, len(self.calls))
        before, after = self.scratch(number, call)
        self.use(before, tick, recorded.stream)
        for each in self.parts.births.get(position, ()):
            self.bear(self.name(each, position, copy), tick)
        self.use(after, tick, recorded.stream)
        return Op(
            tick,
            number,
            self.site(recorded.site, position, copy),
            recorded.phase,
            self.written(recorded.inputs, position, copy),
            self.written(recorded.outputs, position, copy),
            recorded.stream,
            tuple(self.site(each, position, copy) for each in recorded.parts),
        )

    def site(self, recorded: int, position: int, copy: int | None) -> int:
        """A recorded site of an operator, in its copy: of the module that it runs in, or works
        for.
        """
        own, part = self.site_layers[recorded], self.parts.of[position]
        base = None if part is None else part[1]
        layer = copy if own in (None, base) else self.layer_seen(own, base, copy)
        number = self._sites.get((recorded, layer))
        if number is None:
            site = self.recorded.sites[recorded]
            module = self.parts.stacks.renumbered(site.module, layer)
            number = self.sites.setdefault(replace(site, module=module), len(self.sites))
            self._sites[recorded, layer] = number
        return number

    # Lists: as long as there are tensors in all layers.

    def listed(self, tick: int, position: int, call: Call, items: Sequence[int | None]) -> Op:
        """A call on lists, the middle layer's items repeated for every copy of it."""
        recorded = self.recorded.ops[position]
        chosen = list(self.repeated(items))
        local: dict[object, int] = {}
        specs: list[TensorSpec] = []
        numbers: list[int] = []
        lists: dict[str, list[int]] = {}
        for place, spec in enumerate(call.inputs):
            lists.setdefault(spec.argument, []).append(place)
        for places in lists.values():
            is_list = len(places) == len(items)
            for item, copy in chosen if is_list else [(n, None) for n in range(len(places))]:
                place = places[item]
                number = self.item(recorded.inputs[place], copy, position)
                spec = call.inputs[place]
                own: object = number if number >= 0 else (spec.storage, copy)
                specs.append(replace(spec, storage=local.setdefault(own, len(local))))
                numbers.append(number)
        is_list = len(recorded.outputs) == len(items)
        results: list[TensorSpec] = []
        outputs: list[int] = []
        born = set(self.parts.births.get(position, ()))
        for place, copy in chosen if is_list else [(n, None) for n in range(len(call.outputs))]:
            number = recorded.outputs[place]
            if number in born:
                self.bear(self.item_name(number, copy), tick)
            number = self.item(number, copy, position)
            spec = replace(call.outputs[place], storage=local.setdefault(number, len(local)))
            results.append(spec)
            outputs.append(number)
        for number in sorted(born - set(recorded.outputs)):
            self.bear((number, None), tick)
        literals = tuple(
            (name, tuple(scalars[item] for item, _ in chosen))
            if isinstance(scalars, tuple) and len(scalars) == len(items)
            else (name, scalars)
            for name, scalars in call.literals
        )
        call = replace(call, inputs=tuple(specs), outputs=tuple(results), literals=literals)
        number, site = self.calls.setdefault(call, len(self.calls)), recorded.site
        return Op(
            tick, number, self.site(site, position, None), recorded.phase, tuple(numbers),
            tuple(outputs), recorded.stream,
        )  # fmt: skip

    def repeated(self, items: Sequence[int | None]) -> Iterator[Item]:
        """The items of a list that is written, in order."""
        for layer, run in groupby(enumerate(items), key=itemgetter(1)):
            together = [item for item, _ in run]
            copies = (None,) if layer is None else self.copies(layer)
            yield from ((each, copy) for copy in copies for each in together)

    def item_name(self, number: int, copy: int | None) -> Name:
        return (number, None) if copy is None else (self.parts.key[number], copy)

    def item(self, number: int, copy: int | None, position: int) -> int:
        if number < 0:
            return number
        is_owned = self.parts.owner[number] is not None
        return self.known(self.item_name(number, copy if is_owned else None), position)

    # Memory.

    def recorded_number(self, key: Key | int, layer: int | None) -> int:
        """The recorded storage that a written one is like."""
        if isinstance(key, int) or layer is None:
            assert isinstance(key, int)
            return key
        return self.parts.peers[self.recorded_layer(layer), key]

    def bear(self, name: Name, tick: int) -> None:
        """Allocate what a recorded storage is in this layer."""
        number = self.recorded_number(*name)
        storage = self.recorded.storages[number]
        self.number_of[name] = len(self.storages)
        self.storages.append(
            replace(
                storage,
                number=len(self.storages),
                requested_bytes=self.numbers[self.program.storage_sizes[number]],
                born=tick,
                died=None,
                name=self.parts.stacks.renumbered(storage.name, name[1]),
                spare_bytes=0,
                whole_elements=self.wholes.get(number, 0),
            )
        )

    def scratch(self, number: int, call: Call) -> tuple[list[int], list[int]]:
        """Bytes of the temporaries that a call takes before its results, and after."""
        if number not in self._scratch:
            before, after = scratch_before_results(call, self.chip), scratch(call, self.chip)
            self._scratch[number] = [each.bytes for each in before], [each.bytes for each in after]
        return self._scratch[number]

    def use(self, sizes: Sequence[int], tick: int, stream: int) -> None:
        """Take temporaries for the operator of a tick."""
        for size in sizes:
            number = len(self.storages)
            storage = Storage(number, self.device, size, tick, tick + 1, Role.WORKSPACE)
            self.storages.append(replace(storage, name=SCRATCH_NAME, stream=stream))

    @property
    def device(self) -> str:
        return self.recorded.storages[0].device

    def die(self) -> None:
        """Free every storage where the recorded one was freed."""
        for (key, layer), written in self.number_of.items():
            number = self.recorded_number(key, layer)
            storage = self.recorded.storages[number]
            if storage.died is None:
                continue
            mine = self.storages[written]
            if storage.died == storage.born:
                died = mine.born
            else:
                died = self.tick_seen(storage.died - 1, self.parts.owner[number], layer) + 1
            self.storages[written] = replace(mine, died=died)
