"""What a model costs, module by module: the tree that a print of the model shows, with figures."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from torchtally.ledger import Ledger, Path, Total
from torchtally.table import Cell, Column, Table
from torchtally.table.shown import Browsable
from torchtally.units import Unit
from torchtally.views.columns import BACKWARD, FORWARD, RECOMPUTE, SAVED, SECONDS
from torchtally.views.costs import with_costs
from torchtally.views.matrix_work import needed_flops, works_of
from torchtally.views.modules import OUTSIDE
from torchtally.views.summary import Verdict, judge

DEPTH = 3
"""Levels below the model that are shown. What only holds others (a list of blocks) is none."""
INDENT = "  "
FORWARD_COLUMN = replace(FORWARD, column=replace(FORWARD.column, title="fwd"))
BACKWARD_COLUMN = replace(BACKWARD, column=replace(BACKWARD.column, title="bwd", rank=0))
RECOMPUTE_COLUMN = replace(RECOMPUTE, column=replace(RECOMPUTE.column, title="rec", rank=1))
PARAMETERS = Column("parameters", "params", Unit.PARAMETERS)
TREE = Column("module", "module", Unit.TEXT)
OUTPUT = Column("output", "output", Unit.TEXT, rank=3)

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """A module of a model, as it is built: in the order of `named_modules`, one that several
    modules share once in each of them.
    """

    path: str
    class_name: str
    shapes: tuple[Shape, ...] = ()
    """Of its own parameters. One that several modules share belongs to the first of them."""
    trained: tuple[bool, ...] = ()
    """Whether each of them requires a gradient."""
    shared: int = 0
    """How many parameters it has that belong to a module before it."""
    output: tuple[Shape, ...] = ()
    """Of the tensors that its last call returned; empty where it was never called."""
    is_called: bool = True
    """Not a list or a dictionary that only holds others."""

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.shapes))

    @property
    def trained_parameters(self) -> int:
        pairs = zip(self.shapes, self.trained, strict=True)
        return sum(prod(shape) for shape, is_trained in pairs if is_trained)


@dataclass(frozen=True, slots=True)
class ModuleNode:
    """A module with all modules inside it."""

    facts: ModuleFacts
    total: Total
    """Of one step, with what the modules inside it cost."""
    parameters: int
    trained_parameters: int
    children: tuple["ModuleNode", ...]

    def __repr__(self) -> str:
        name = self.facts.path or "the model"
        return f"<ModuleNode {name}: {self.facts.class_name}, {self.parameters} parameters>"

    @property
    def likeness(self) -> tuple[object, ...]:
        """Equal for modules that are built alike and return alike."""
        facts = self.facts
        inner = ((child.name, child.likeness) for child in self.children)
        own = facts.shapes, facts.trained, facts.shared
        return facts.class_name, *own, facts.output, tuple(inner)

    @property
    def has_shared_alone(self) -> bool:
        """All its parameters belong to modules outside it."""
        return not self.parameters and any(node.facts.shared for node in self.walk())

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.facts.path.rpartition(".")[2]

    def walk(self) -> Iterator["ModuleNode"]:
        """Itself and all modules inside it, in the model's order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class ModelSummary(Browsable):
    """One training step of a model (or one forward pass), accounted by its modules."""

    ledger: Ledger
    """Of the step, with all its views."""
    root: ModuleNode
    outside: Total
    """Of the step, in no module: the loss's gradient, the optimizer."""
    inputs: str
    """What the model was called with."""
    how: str
    """What the step is: optimizer and precision, in words."""
    is_training: bool = True

    def __repr__(self) -> str:
        return (
            f"<ModelSummary of {self.root.facts.class_name} on {self.ledger.trace.chip}: "
            f"{self.parameters} parameters, {self.ledger.total.flops} FLOPs, "
            f"peak {self.peak_bytes} bytes>"
        )

    @property
    def parameters(self) -> int:
        """Each once, however many modules share it."""
        return self.root.parameters

    @property
    def trained_parameters(self) -> int:
        return self.root.trained_parameters

    @property
    def flops_forward(self) -> int:
        return self.ledger.total.flops_forward

    @property
    def flops_backward(self) -> int:
        """Backward FLOPs as executed: a fused attention kernel makes its scores again."""
        return self.ledger.total.flops_backward

    @property
    def model_flops(self) -> int:
        """FLOPs of matrix products and attention, forward and backward, each once: what MFU
        counts.
        """
        return needed_flops(works_of(self.ledger.reported), self.ledger.convention)

    @property
    def bytes_saved(self) -> int:
        """Held from the forward to the backward pass."""
        return self.ledger.total.bytes_saved

    @property
    def step_s(self) -> float | None:
        """Predicted; None for a chip whose speed is unknown."""
        return self.ledger.step_s

    @property
    def peak_bytes(self) -> int:
        """Allocated at most, of a step that is not the first: optimizer state is there."""
        return self.ledger.memory.peak_bytes

    @property
    def verdict(self) -> Verdict:
        """Whether it fits, by what the allocator reserves and what the CUDA context takes."""
        return judge(self.ledger)

    @property
    def fits(self) -> bool | None:
        """None for a chip whose memory is unknown."""
        return self.verdict.fits

    @property
    def modules(self) -> dict[str, ModuleNode]:
        """Every module by its path, the model itself by ""."""
        return {node.facts.path: node for node in self.root.walk()}

    def table(self, depth: int | None = DEPTH) -> Table:
        """The tree to so many levels below the model, all of it for None.

        Modules side by side that are built alike are one row, with the sum of all.
        """
        total = self.ledger.total
        figures = [SECONDS] if self.ledger.roofline is not None else []
        figures += [FORWARD_COLUMN]
        figures += [each for each in (BACKWARD_COLUMN, RECOMPUTE_COLUMN) if each.of(total)]
        figures += [SAVED] if self.is_training else []

        def row(cost: Total, parameters: int | None, *texts: Cell) -> tuple[Cell, ...]:
            return (*(figure.of(cost) for figure in figures), parameters, *texts)

        groups = list(_rows([("", [self.root])], 0, depth))
        rows = [
            row(
                _sum(node.total for node in alike),
                _parameters(alike),
                INDENT * level + label,
                _shapes(alike[0].facts.output),
            )
            for level, label, alike in groups
        ]
        if self.outside != Total():
            rows.append(row(self.outside, None, "(outside any module)", ""))
        work = [each.column.title for each in figures if each.column.unit is Unit.FLOPS]
        table = Table(
            title=f"By module, with all inside it ({', '.join(work)}: FLOPs)",
            columns=(*(figure.column for figure in figures), PARAMETERS, TREE, OUTPUT),
            rows=tuple(rows),
            totals=row(total, self.parameters, None, None),
            note=SHARED_NOTE if any(_parameters(alike) is None for *_, alike in groups) else "",
        )
        return with_costs(table, self.ledger)


SHARED_NOTE = "-: its parameters are those of a module before it, and counted there."


def _parameters(alike: Sequence[ModuleNode]) -> int | None:
    """The sum over modules of one row; None where modules before them have all that they have."""
    if all(node.has_shared_alone for node in alike):
        return None
    return sum(node.parameters for node in alike)


def model_summary(
    ledger: Ledger,
    modules: Sequence[ModuleFacts],
    *,
    inputs: str,
    how: str,
    is_training: bool = True,
) -> ModelSummary:
    """The summary of a traced step; `modules` are those of the model, itself first."""
    paths = {facts.path for facts in modules}
    own: dict[str, Total] = {}
    outside = Total()
    for path, total in ledger.by_module().items():
        if path == OUTSIDE:
            outside += total
        else:
            holder = _nearest(path, paths)
            own[holder] = own.get(holder, Total()) + total
    return ModelSummary(ledger, _tree(modules, own), outside, inputs, how, is_training)


def _nearest(path: Path, paths: set[str]) -> str:
    """The module of that path, else the innermost around it: a model may call modules that it
    does not hold.
    """
    module = path.module
    while module not in paths:
        module = module.rpartition(".")[0]
    return module


def _tree(modules: Sequence[ModuleFacts], own: dict[str, Total]) -> ModuleNode:
    children: dict[str, list[ModuleFacts]] = {}
    paths = {facts.path for facts in modules}
    for facts in modules:
        if facts.path:
            holder = _nearest(Path(facts.path.rpartition(".")[0], ""), paths)
            children.setdefault(holder, []).append(facts)

    def node(facts: ModuleFacts) -> ModuleNode:
        inner = tuple(map(node, children.get(facts.path, ())))
        return ModuleNode(
            facts=facts,
            total=own.get(facts.path, Total()) + _sum(child.total for child in inner),
            parameters=facts.parameters + sum(child.parameters for child in inner),
            trained_parameters=facts.trained_parameters
            + sum(child.trained_parameters for child in inner),
            children=inner,
        )

    return node(modules[0])


Group = tuple[str, Sequence[ModuleNode]]
"""Modules that are one row, and what names them."""


def _rows(
    groups: Sequence[Group], level: int, depth: int | None, prefix: str = ""
) -> Iterator[tuple[int, str, Sequence[ModuleNode]]]:
    """(level, label, modules) of each row. `prefix` names what only holds these modules."""
    for name, alike in _join(groups):
        facts = alike[0].facts
        places = zip(*(node.children for node in alike), strict=True)
        inner = [(nodes[0].name, nodes) for nodes in places]
        if not facts.is_called and inner and level:
            yield from _rows(inner, level, depth, f"{prefix}{name}.")
            continue
        count = f"{len(alike)} x " if len(alike) > 1 else ""
        label = f"{prefix}{name}: " if level else ""
        yield level, f"{label}{count}{facts.class_name}", alike
        if depth is None or level < depth:
            yield from _rows(inner, level + 1, depth)


def _join(groups: Sequence[Group]) -> Iterator[Group]:
    """Groups that follow each other by number and are built alike, as one."""
    run: list[Group] = []
    for group in groups:
        if run and not _are_alike(run[-1], group):
            yield _as_one(run)
            run = []
        run.append(group)
    if run:
        yield _as_one(run)


def _are_alike(group: Group, following: Group) -> bool:
    (name, nodes), (next_name, next_nodes) = group, following
    is_numbered = name.isdecimal() and next_name.isdecimal()
    return is_numbered and nodes[0].likeness == next_nodes[0].likeness


def _as_one(groups: Sequence[Group]) -> Group:
    first, last = groups[0][0], groups[-1][0]
    name = first if len(groups) == 1 else f"({first}-{last})"
    return name, [node for _, nodes in groups for node in nodes]


def _sum(totals: Iterable[Total]) -> Total:
    return sum(totals, start=Total())


def _shapes(shapes: Sequence[Shape]) -> str:
    return ", ".join("x".join(map(str, shape)) or "scalar" for shape in shapes)
