"""What lacked when memory ran out: the request, its line, and what occupied the memory."""

from dataclasses import dataclass

from torchtally.ledger import Ledger
from torchtally.table import Column, Table
from torchtally.trace import Frame, Refusal, Site
from torchtally.units import Unit
from torchtally.views.holdings import bytes_of, group_holdings, holdings, owner_of
from torchtally.views.lines import TEXTS, line_texts, root_of
from torchtally.views.moments import step_name
from torchtally.views.peak import title_of


@dataclass(frozen=True, slots=True)
class Shortage:
    """A request for memory that was refused, and could not be helped."""

    refusal: Refusal
    site: Site
    moment: str
    """"step 1, backward of model.py:41"."""
    holders: Table


COLUMNS = (
    Column("category", "held for", Unit.NAME),
    Column("bytes", "held", Unit.BYTES),
    Column("bytes_share", "share", Unit.FRACTION),
    Column("count", "storages", Unit.COUNT, rank=2),
    Column("since", "since", Unit.NAME, rank=1),
    *TEXTS,
    Column("module", "module", Unit.TEXT, rank=3),
)


def holders(ledger: Ledger, tick: int) -> Table:
    """Bytes alive at a tick, by the line that allocated them, category and age."""
    allocated = holdings(ledger, tick)
    owner = owner_of(ledger)
    whole = bytes_of(allocated)
    groups = group_holdings(
        allocated,
        lambda holding: (holding.line, holding.category, step_name(ledger, holding.storage.born)),
    )
    root = root_of(holding.line for holding in allocated)
    rows = tuple(
        (
            title_of(category),
            bytes_of(members),
            bytes_of(members) / whole if whole else 0.0,
            len(members),
            since,
            *line_texts(line, root),
            common_module({owner(holding).module for holding in members}),
        )
        for (line, category, since), members in groups
    )
    return Table(
        title="What occupied the memory at the OOM",
        columns=COLUMNS,
        rows=rows,
        totals=(None, whole, 1.0 if whole else 0.0, len(allocated), None, None, None, None),
        note="A gradient is allocated by its forward line's backward.",
    )


def common_module(paths: set[str]) -> str:
    """The module all these lie in, with the number of them: "h (12)"; "" for the whole model."""
    if len(paths) == 1:
        return next(iter(paths))
    parts = [path.split(".") for path in sorted(paths)]
    common = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return f"{'.'.join(common)} ({len(paths)})".strip()


@dataclass(frozen=True, slots=True)
class SurvivedShortage:
    """Requests that ran out of memory, in a script that caught the errors."""

    count: int
    requested_bytes: int
    """By the largest of them."""
    line: Frame | None
    """Of it."""


def survived_shortage(ledger: Ledger) -> SurvivedShortage | None:
    """Find them among a trace's refusals; None where there are none, or the last ended the run."""
    trace = ledger.trace
    refusals = [refusal for refusal in trace.refusals if refusal is not trace.final_refusal]
    if not refusals or trace.final_refusal is not None:
        return None
    largest = max(refusals, key=lambda refusal: refusal.requested_bytes)
    return SurvivedShortage(len(refusals), largest.requested_bytes, trace.sites[largest.site].line)
