"""The table of docs/operators.md: each operator beside what the package knows of it.

What an operator is known by stands in several tables of the package, since each is another kind of
fact. Here they stand side by side, and gaps show.
"""

from collections.abc import Iterable
from importlib import import_module

HEAD = (
    "| operator | kind of work | scratch memory | kernels | CUDA's composition | shape"
    " | values | autocast |\n|---|---|---|---|---|---|---|---|"
)


def operators_table() -> str:
    """One row per operator that anything is known of, by name; in-place forms in the plain row."""
    from torchtally.memory.workspace.scratch import RULES as SCRATCH
    from torchtally.timing.roofline.composed import COMPOSED
    from torchtally.virtual.autocast import CASTS, REFUSED
    from torchtally.virtual.distributed import collectives, expert_exchange, symmetric
    from torchtally.virtual.kernels import KERNELS
    from torchtally.virtual.shapes import SHAPES
    from torchtally.virtual.special import SPECIAL
    from torchtally.work.rule import RULES

    import_module("torchtally.virtual.session")  # all that fill these tables
    collectives.register()  # which a run does with its first process group
    symmetric.register()
    expert_exchange.register()
    columns = [
        {plain(name): rule.kind.value for name, rule in RULES.items()},
        marked(SCRATCH),
        {plain(name): str(row.launches) for name, row in COMPOSED.items() if row.launches > 1},
        *(marked(overload.name() for overload in table) for table in (KERNELS, SHAPES, SPECIAL)),
        {plain(name): cast.name.lower() for name, cast in CASTS.items()}
        | {plain(name): "refused" for name in REFUSED},
    ]
    kinds, *others = columns
    names = sorted({name for column in others for name in column})
    rows = (" | ".join((f"`{name}`", *cells(name, columns))) for name in names)
    return "\n".join((HEAD, *(f"| {row} |" for row in rows), "", *ruled_alone(kinds, set(names))))


def ruled_alone(kinds: dict[str, str], others: set[str]) -> Iterable[str]:
    """A paragraph for each kind of work: the operators with a rule and nothing else."""
    yield "A rule alone, by kind of work:"
    for kind in sorted(set(kinds.values())):
        names = sorted(name for name in kinds if kinds[name] == kind and name not in others)
        if names:
            yield f"\n**{kind}** ({len(names)}): {', '.join(f'`{name}`' for name in names)}."


def plain(name: str) -> str:
    """The name without the namespace aten, without overload and the mark of in-place forms."""
    from torchtally.work.rule import RULES

    namespace, _, rest = name.replace("::", ".").removeprefix("aten.").partition(".")
    if namespace in {rule.partition(".")[0] for rule in RULES}:
        return f"{namespace}.{rest.partition('.')[0]}"
    return namespace if namespace.startswith("__") else namespace.rstrip("_")


def marked(names: Iterable[str]) -> dict[str, str]:
    return {plain(name): "yes" for name in names}


def cells(name: str, columns: list[dict[str, str]]) -> list[str]:
    """Nothing is known of the work of an operator without a rule: it would be listed as such."""
    kind, *rest = (column.get(name, "") for column in columns)
    return [kind or "**no rule**", *rest]
