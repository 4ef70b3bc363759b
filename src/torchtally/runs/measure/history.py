"""The allocator's history played back: peaks of every step, and what was held at the highest.

The history is that of `torch.cuda.memory._snapshot()`, which a GPU and a simulated one both have.
It gives a block the bytes that were asked for; here they count rounded up to 512, as in
`torch.cuda.memory_allocated()`, but without what a block has beyond that because the rest was too
small to split off.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchtally.trace import Role
from torchtally.trace.storage import allocated_bytes

Entry = Mapping[str, Any]
"""One event of the history, in torch's own form."""
Frames = Sequence[Mapping[str, Any]]

STEP_MARK = "tally: steps completed: "
"""With a number: the metadata that events carry from the end of a training step on."""

RESERVES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


@dataclass(frozen=True, slots=True)
class HistoryBlock:
    """One allocation that is held."""

    birth: int
    """The number of the event that allocated it."""
    address: int
    bytes: int
    frames: Frames


@dataclass(frozen=True, slots=True)
class Played:
    """The result of playing a history back."""

    step_peaks: tuple[tuple[int, int], ...]
    """(allocated, reserved) bytes: each completed step, and what came after the last one."""
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_step: int
    """Steps that were completed when most was allocated."""
    at_peak: tuple[tuple[HistoryBlock, Role | None], ...]


def play(
    entries: Sequence[Entry],
    roles: Sequence[Mapping[int, Role]],
    unfinished: Mapping[int, Role] | None = None,
) -> Played:
    """Play a history back.

    Args:
        entries: the events of one device, in order.
        roles: what optimizers held at the end of each completed step, by address.
        unfinished: what they held in the step that was not completed.
    """
    role_of_birth: dict[int, Role] = {}
    """Roles by the birth of their block."""
    alive: dict[int, HistoryBlock] = {}
    allocated = reserved = peak = peak_at = peak_step = 0
    tops = [(0, 0)]

    def complete_steps(count: int) -> None:
        """Steps have ended before this event: whoever had a role then has a block now."""
        while len(tops) <= min(count, len(roles)):
            for address, role in roles[len(tops) - 1].items():
                if address in alive:
                    role_of_birth.setdefault(alive[address].birth, role)
            tops.append((allocated, reserved))

    for number, entry in enumerate(entries):
        complete_steps(_completed_steps(entry))
        change = _apply(entry, number, alive)
        allocated += change
        reserved += RESERVES.get(entry["action"], 0) * int(entry["size"])
        tops[-1] = max(tops[-1][0], allocated), max(tops[-1][1], reserved)
        if allocated > peak:
            peak, peak_at, peak_step = allocated, number, len(tops) - 1
    complete_steps(len(roles))
    blocks = _alive_after(entries[: peak_at + 1])
    late = unfinished or {} if peak_step == len(roles) else {}
    return Played(
        step_peaks=tuple(tops),
        peak_allocated_bytes=peak,
        peak_reserved_bytes=max(top for _, top in tops),
        peak_step=peak_step,
        at_peak=tuple(
            (block, role_of_birth.get(block.birth) or late.get(block.address)) for block in blocks
        ),
    )


def _completed_steps(entry: Entry) -> int:
    """Completed training steps by an event's metadata; 0 without any (other threads)."""
    metadata = str(entry.get("user_metadata", ""))
    number = metadata.removeprefix(STEP_MARK)
    return int(number) if number != metadata and number.isdecimal() else 0


def _apply(entry: Entry, number: int, alive: dict[int, HistoryBlock]) -> int:
    """Allocate or free a block. Returns the bytes that are more held now.

    torch counts a block as allocated until its free is requested, whenever that completes.
    """
    action = entry["action"]
    if action == "alloc":
        address = int(entry["addr"])
        block = HistoryBlock(number, address, allocated_bytes(int(entry["size"])), entry["frames"])
        before = alive.pop(address, None)
        alive[address] = block
        return block.bytes - (before.bytes if before is not None else 0)
    if action in ("free_requested", "free_completed", "free"):
        freed = alive.pop(entry["addr"], None)
        return -freed.bytes if freed is not None else 0
    return 0


def _alive_after(entries: Iterable[Entry]) -> tuple[HistoryBlock, ...]:
    alive: dict[int, HistoryBlock] = {}
    for number, entry in enumerate(entries):
        _apply(entry, number, alive)
    return tuple(alive.values())
