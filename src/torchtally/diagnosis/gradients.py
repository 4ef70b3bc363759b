"""Parameters that the forward pass reads and no gradient reaches."""

from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.ledger import Entry, Ledger, line_of
from torchtally.table import Number
from torchtally.trace import FORWARD_PHASES, Phase, Role
from torchtally.units import Unit

LEAST_SHARE = 0.05
"""Of the bytes of all parameters that ask for a gradient."""


@rule("gradients")
def gradients(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find parameters of the reported step, on one rank whose parameters are whole.

    A parameter's gradient is made by a backward operator of the line that read the parameter: a
    line without backward operators passed no gradient on.
    """
    ledger = peak.ledger
    if ledger.trace.world.size > 1 or ledger.reported_period.step is None:
        return
    parameters = {
        storage.number: storage
        for storage in ledger.trace.storages
        if storage.role is Role.PARAMETER and storage.is_trained
    }
    sites_of: dict[int, set[int]] = {}
    reached: set[int] = set()
    readers: dict[int, Entry] = {}
    for entry in ledger.reported:
        if entry.op.phase is Phase.BACKWARD:
            reached.add(entry.op.site)
        elif entry.op.phase in FORWARD_PHASES:
            for number in {*entry.op.inputs} & parameters.keys():
                sites_of.setdefault(number, set()).add(entry.op.site)
                readers.setdefault(number, entry)
    if not reached:
        return  # evaluation, or a script that trains nothing
    lost = [number for number, sites in sites_of.items() if not sites & reached]
    lost_bytes = sum(parameters[number].bytes for number in lost)
    read_bytes = sum(parameters[number].bytes for number in sites_of)
    if not lost or lost_bytes < LEAST_SHARE * read_bytes:
        return
    # The backward pass of a custom function belongs to lines of its own: gradients tell.
    if bytes_of_gradients(ledger) > read_bytes - lost_bytes:
        return
    yield Diagnosis(
        "gradients",
        (
            Number(len(lost), Unit.COUNT),
            " of ",
            Number(len(parameters), Unit.COUNT),
            " trained parameters get no gradient, though the forward pass reads them: they do not"
            " learn.",
        ),
        "A reentrant checkpoint whose inputs need no gradient does that (use_reentrant=False"
        " does not), and so do .detach() and no_grad.",
        line_of(readers[lost[0]]),
        lost_bytes,
        1.0,
    )


def bytes_of_gradients(ledger: Ledger) -> int:
    """Sum the bytes of all gradients that live in the reported period."""
    first, last = ledger.reported[0].op.clock, ledger.reported[-1].op.clock
    return sum(
        storage.bytes
        for storage in ledger.trace.storages
        if storage.role is Role.GRADIENT
        and storage.born <= last
        and (storage.died is None or storage.died > first)
    )
