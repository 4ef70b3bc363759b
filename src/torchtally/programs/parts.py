"""A recorded run cut into its ends and its layers, by module paths and names of parameters.

Operators of a stack of layers come in *sweeps*: a pass over all layers, upwards (forward, making
the optimizer's state) or downwards (backward). Each sweep has a part per layer, one after another
without a gap; operators outside sweeps (embedding, head, loss, list calls of an optimizer) are the
ends. Storages belong to the layer in which they are born, by their name first.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from torchtally.errors import ProgramError
from torchtally.trace import Call, Op, Phase, Role, Trace

INDEX = re.compile(r"(?:^|(?<=\.))\d+(?=\.|$)")
"""A number in a module's path: the layer's, where it is the first."""
SCRATCH_NAME = "operator's temporaries"
DIRECTIONS = {Phase.RECOMPUTE: Phase.BACKWARD}
"""Phases that are passes together: layers are repeated within the backward pass."""


DEFAULT_STREAM = 0
Part = tuple[int, int]
"""(number of the sweep, recorded layer)."""
Key = tuple[object, ...]
"""What a storage is in its layer: the same in every layer that has it."""


LAYERS = 3
"""Recorded ones: the first, the last, and one that stands for all between. Where layers of several
kinds alternate, a period of them is one."""


@dataclass(frozen=True, slots=True)
class LayerLists:
    """The lists of layers of a model."""

    paths: frozenset[str]
    """With a dot at the end: "model.layers."."""
    period: int
    """Modules that are a layer: above one where kinds alternate. The last layer has the rest."""
    lead: int
    """Modules of the first layer: others than a period where the first ones are of another kind."""

    def index_in(self, path: str) -> int | None:
        """The number of the module that a path is in."""
        match = INDEX.search(path)
        is_layers = match is not None and path[: match.start()] in self.paths
        return int(match[0]) if match is not None and is_layers else None

    def layer_in(self, path: str) -> int | None:
        """The recorded layer that a module's or a parameter's path is in."""
        index = self.index_in(path)
        if index is None or index < self.lead:
            return index if index is None else 0
        return min(1 + (index - self.lead) // self.period, LAYERS - 1)

    def renumbered(self, path: str, layer: int | None) -> str:
        """The path of the same module in another layer."""
        index, own = self.index_in(path), self.layer_in(path)
        if index is None or own is None or layer is None:
            return path
        return INDEX.sub(str(index + (layer - own) * self.period), path, count=1)


@dataclass(slots=True)
class Sections:
    """Sections to which each operator and each storage of a recorded trace belongs."""

    stacks: LayerLists
    names: list[str]
    """Of the call of each operator."""
    of: list[Part | None]
    """Of each operator; None: the ends."""
    ranges: dict[Part, tuple[int, int]]
    births: dict[int, list[int]] = field(default_factory=dict)
    """Numbers of the storages that each operator allocates."""
    owner: dict[int, int | None] = field(default_factory=dict)
    """The layer of each storage; None: of no layer."""
    key: dict[int, Key] = field(default_factory=dict)
    """Of each storage that a layer owns."""
    peers: dict[tuple[int, Key], int] = field(default_factory=dict)
    """The storage of a recorded layer by its key."""
    lists: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Of each operator in the ends on tensors of all layers: the layer of each item of its lists.
    """

    def moved(self, position: int, layer: int) -> int | None:
        """The operator of another recorded layer that does what this one does in its own.

        Layers may begin or end differently: operators are counted from the end they share.
        """
        part = self.of[position]
        assert part is not None
        sweep, own = part
        if own == layer:
            return position
        (first, end), (start, stop) = self.ranges[part], self.ranges[sweep, layer]
        mine, other = self.names[first:end], self.names[start:stop]
        if position - first < alike(mine, other):
            return start + position - first
        if end - position <= alike(mine[::-1], other[::-1]):
            return stop - (end - position)
        return None


def alike(names: Sequence[str], others: Sequence[str]) -> int:
    """How many names two lists begin with."""
    pairs = zip(names, others, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(names), len(others)))


def cut(trace: Trace, modules: int, period: int, lead: int) -> Sections:
    """The parts of a run whose model has so many modules in its list of layers.

    Raises ProgramError for a run that is none of layers.
    """
    if [op.clock for op in trace.ops] != list(range(len(trace.ops))):
        raise ProgramError("the recording does not have every operator.\nRecord the whole run.")
    stacks = stacks_of(trace, modules, period, lead)
    try:
        of, ranges = sweeps(trace, labels(trace, stacks, follows_storages=True))
    except ProgramError:
        of, ranges = sweeps(trace, labels(trace, stacks, follows_storages=False))
    names = [trace.calls[op.call].name for op in trace.ops]
    parts = Sections(stacks, names, of, ranges)
    for storage in trace.storages:
        parts.births.setdefault(storage.born, []).append(storage.number)
    own(trace, parts)
    return parts


def is_scratch(role: Role | None, name: str) -> bool:
    """Memory that follows from the call alone (`memory.workspace`)."""
    return role is Role.WORKSPACE and name == SCRATCH_NAME


def stacks_of(trace: Trace, modules: int, period: int, lead: int) -> LayerLists:
    """Paths below which the modules are numbered from 0 to the number of layers."""
    numbers: dict[str, set[int]] = {}
    for path in (
        *(site.module for site in trace.sites),
        *(storage.name for storage in trace.storages),
    ):
        match = INDEX.search(path)
        if match is not None:
            numbers.setdefault(path[: match.start()], set()).add(int(match[0]))
    paths = frozenset(path for path, indices in numbers.items() if indices == set(range(modules)))
    if not paths:
        raise ProgramError(
            f"{trace.script}: no list of {modules} layers among its modules "
            f"({', '.join(sorted(numbers)) or 'none is numbered'})."
        )
    return LayerLists(paths, period, lead)


def labels(trace: Trace, stacks: LayerLists, *, follows_storages: bool) -> list[int | None]:
    """The layer of each operator: its module's, else that of the parameters it reads or makes.

    Where it follows storages, an operator outside of modules also belongs to the layer of what it
    reads: an optimizer or a loop that takes one parameter after another works on their gradients.
    """
    layer_of = {storage.number: stacks.layer_in(storage.name) for storage in trace.storages}
    births: dict[int, list[int]] = {}
    for storage in trace.storages:
        births.setdefault(storage.born, []).append(storage.number)
    found = []
    for position, op in enumerate(trace.ops):
        layer = label(trace, op, stacks)
        used = [n for n in (*op.inputs, *op.outputs) if n >= 0]
        if layer is None and follows_storages and not trace.sites[op.site].module:
            layers = {layer_of[number] for number in used} - {None}
            layer = layers.pop() if len(layers) == 1 else None
        own_layers = dict(zip(op.outputs, first_list(trace, op), strict=False))
        for number in births.get(position, ()):
            if not trace.storages[number].name:
                source = own_layers.get(number)
                layer_of[number] = layer if source is None else layer_of[source]
        found.append(layer)
    return found


def first_list(trace: Trace, op: Op) -> list[int]:
    """The first list that a call takes, where it gives a list as long: each result is of the layer
    of its item.
    """
    specs = trace.calls[op.call].inputs
    first = [
        n for n, spec in zip(op.inputs, specs, strict=True) if spec.argument == specs[0].argument
    ]
    return first if len(first) == len(op.outputs) > 1 and min(first) >= 0 else []


def label(trace: Trace, op: Op, stacks: LayerLists) -> int | None:
    """The layer of an operator: its module's, else that of the parameters it reads or makes."""
    module = trace.sites[op.site].module
    if module:
        return stacks.layer_in(module)
    named = {trace.storages[n].name for n in (*op.inputs, *op.outputs) if n >= 0} - {""}
    layers = {stacks.layer_in(name) for name in named}
    return layers.pop() if len(layers) == 1 else None


def sweeps(
    trace: Trace, labels: Sequence[int | None]
) -> tuple[list[Part | None], dict[Part, tuple[int, int]]]:
    """The part of each operator, and where each part begins and ends.

    What lies between two layers of a sweep belongs to the later one, but for what other streams do
    for the earlier one after it (its gradients are scattered). What they do within a layer for
    another (its weights are gathered) belongs to the layer within.
    """
    is_beside = [op.stream != DEFAULT_STREAM for op in trace.ops]
    marked = [
        (DIRECTIONS.get(op.phase, op.phase), layer, position)
        for position, (op, layer) in enumerate(zip(trace.ops, labels, strict=True))
        if layer is not None and not is_beside[position]
    ]
    runs = [
        (layer, [position for _, _, position in run])
        for (_, layer), run in groupby(marked, key=lambda row: row[:2])
    ]
    of: list[Part | None] = [None] * len(labels)
    ranges = {}
    upwards = list(range(LAYERS))
    for sweep, first in enumerate(range(0, len(runs), LAYERS)):
        chosen = runs[first : first + LAYERS]
        order = [layer for layer, _ in chosen]
        if order not in (upwards, upwards[::-1]):
            op = trace.ops[chosen[0][1][0]]
            raise ProgramError(
                f"{trace.script}: {trace.calls[op.call].name} in {trace.sites[op.site].module!r} "
                f"({op.phase}) begins a pass over layers {order}, expected {upwards} in order."
            )
        start = chosen[0][1][0]
        while start and is_beside[start - 1] and labels[start - 1] == order[0]:
            start -= 1
        for layer, positions in chosen:
            end = positions[-1] + 1
            while end < len(of) and is_beside[end] and labels[end] == layer:
                end += 1
            ranges[sweep, layer] = start, end
            of[start:end] = [(sweep, layer)] * (end - start)
            start = end
    return of, ranges


def own(trace: Trace, parts: Sections) -> None:
    """Find the layer of each storage, and what it is in it."""
    count: dict[tuple[int, Key], int] = {}
    for position, op in enumerate(trace.ops):
        part, call = parts.of[position], trace.calls[op.call]
        items = list_layers(call, op, parts) if part is None else None
        if items is not None:
            parts.lists[position] = items
        for number in parts.births.get(position, ()):
            storage = trace.storages[number]
            layer = parts.stacks.layer_in(storage.name)
            if layer is None and part is not None:
                layer = part[1]
            elif layer is None and items is not None and len(op.outputs) == len(items):
                layer = items[op.outputs.index(number)] if number in op.outputs else None
            parts.owner[number] = layer
            if layer is None:
                continue
            key: Key
            if storage.name:
                key = ("named", parts.stacks.renumbered(storage.name, 0))
            elif part is None:
                key = ("listed", position)
            else:
                middle = parts.moved(position, 1)
                key = ("born", part[0], position if middle is None else middle, middle is None)
            rank = count.get((layer, key), 0)
            count[layer, key] = rank + 1
            parts.key[number] = key = (*key, rank)
            parts.peers[layer, key] = number


def list_layers(call: Call, op: Op, parts: Sections) -> tuple[int | None, ...] | None:
    """The layer of each item of a call on lists, where all layers are among them."""
    lengths: dict[str, list[int]] = {}
    for place, spec in enumerate(call.inputs):
        lengths.setdefault(spec.argument, []).append(place)
    longest = max(map(len, lengths.values()), default=0)
    items: list[int | None] = [None] * longest
    for places in lengths.values():
        if len(places) == longest:
            for item, place in enumerate(places):
                layer = parts.owner.get(op.inputs[place])
                items[item] = items[item] if layer is None else layer
    return tuple(items) if set(range(LAYERS)) <= set(items) else None
