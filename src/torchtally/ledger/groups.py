"""Keys by which operators are grouped, and the sums of the groups."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from math import fsum
from typing import TypeVar

from torchtally.ledger.delegation import line, own_line
from torchtally.ledger.total import Entry, Line, Path, Total
from torchtally.timing.slots import Slot
from torchtally.trace import FORWARD_PHASES, Phase
from torchtally.work import Kind

Key = TypeVar("Key", bound=Hashable)


def is_view(entry: Entry) -> bool:
    """A view made in the forward pass."""
    return entry.kind is _VIEW and id(entry.op.phase) in _FORWARD_IDS


def is_copy(entry: Entry) -> bool:
    """A copy of a tensor in the forward pass; a fill (zeros) has no input and does not count."""
    return entry.kind is _COPY and id(entry.op.phase) in _FORWARD_IDS and bool(entry.call.inputs)


def line_of(entry: Entry) -> Line | None:
    """The innermost line of the user's own code; of the model's where one line delegates to it."""
    return entry.line


def own_line_of(entry: Entry) -> Line | None:
    """The innermost line of the user's own code, else the innermost known one."""
    return own_line(entry.site)


def library_line_of(entry: Entry) -> Line | None:
    """The innermost line, of the user's code or a library's."""
    frames = entry.site.frames
    return line(frames[0] if frames else None)


def module_of(entry: Entry) -> Path:
    return Path(entry.site.module, entry.site.module_class)


def once_per_site(key: Callable[[Entry], Key]) -> Callable[[Entry], Key]:
    """The same key, computed once for all entries that share a site: for keys of the site alone."""
    key_by_site: dict[int, Key] = {}

    def of(entry: Entry) -> Key:
        site = id(entry.site)
        if site not in key_by_site:
            key_by_site[site] = key(entry)
        return key_by_site[site]

    return of


def op_of(entry: Entry) -> str:
    return entry.operator


def kernel_of(entry: Entry) -> str:
    return entry.call.name


def phase_of(entry: Entry) -> Phase:
    return entry.op.phase


def kind_of(entry: Entry) -> Kind:
    return entry.kind


def sums(
    entries: Iterable[Entry],
    slots: Sequence[Slot],
    key: Callable[[Entry], Key],
    predicted_s: Sequence[float] = (),
) -> dict[Key, Total]:
    """Totals of the groups that `key` makes, in order of first appearance.

    `slots` has one slot for each entry of the ledger, by number; so has `predicted_s`, where the
    slots were measured.
    """
    groups: dict[Key, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(key(entry), []).append(entry)
    totals = {group: _sum(members, slots) for group, members in groups.items()}
    if predicted_s:
        for group, members in groups.items():
            part_s = fsum(predicted_s[entry.number] * entry.share for entry in members)
            totals[group] = replace(totals[group], predicted_s=part_s)
    return totals


def _sum(entries: Iterable[Entry], slots: Sequence[Slot]) -> Total:
    """One pass over the entries: a view of a large trace takes hundreds of thousands."""
    forward = backward = recompute = optimizer = evaluation = matmul = count = views = copies = 0
    read = written = network = allocated = saved = 0
    seconds = kernel_s = network_s = exposed_s = 0.0
    for entry in entries:
        cost, phase = entry.cost, entry.op.phase
        count += 1
        if id(phase) in _FORWARD_IDS:
            forward += cost.flops
            if entry.kind is _VIEW:
                views += 1
            elif entry.kind is _COPY and entry.call.inputs:
                copies += 1
        elif phase is _BACKWARD:
            backward += cost.flops
        elif phase is _RECOMPUTE:
            recompute += cost.flops
        elif phase is _OPTIMIZER:
            optimizer += cost.flops
        else:
            evaluation += cost.flops
        if id(entry.kind) in _MATMUL_IDS:
            matmul += cost.flops
        read += cost.bytes_read
        written += cost.bytes_written
        network += cost.network_bytes
        allocated += entry.bytes_allocated
        saved += entry.bytes_saved
        slot = slots[entry.number]
        seconds += slot.seconds * entry.share
        kernel_s += slot.kernel_s * entry.share
        if entry.kind is _COMMUNICATION:
            network_s += slot.kernel_s
            exposed_s += slot.exposed_s
    return Total(
        count=count,
        flops_forward=forward,
        flops_backward=backward,
        flops_recompute=recompute,
        flops_optimizer=optimizer,
        flops_evaluation=evaluation,
        flops_matmul=matmul,
        bytes_read=read,
        bytes_written=written,
        network_bytes=network,
        bytes_allocated=allocated,
        bytes_saved=saved,
        views=views,
        copies=copies,
        seconds=seconds,
        kernel_s=kernel_s,
        network_s=network_s,
        exposed_s=exposed_s,
    )


# Looking up an enum's member and hashing it run Python code: too slow once per operator.
_FORWARD_IDS = frozenset(map(id, FORWARD_PHASES))
_BACKWARD, _RECOMPUTE, _OPTIMIZER = Phase.BACKWARD, Phase.RECOMPUTE, Phase.OPTIMIZER
_VIEW, _COPY, _COMMUNICATION = Kind.VIEW, Kind.COPY, Kind.COMMUNICATION
_MATMUL_IDS = frozenset(id(kind) for kind in Kind if kind.is_matmul)
