"""What collectives show that a change of the script may be worth: evidence, and how to try it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum

from torchtally.ledger import Entry, Ledger
from torchtally.table import Number, Prose
from torchtally.timing.network import Transfer
from torchtally.trace import Phase
from torchtally.units import Unit

LEAST_SHARE = 0.01
"""Of the step: what must be exposed for a change to be worth a run."""
MIB = 2**20
GATHER, REDUCE = "c10d._allgather_base_", "c10d.allreduce_"
BROADCAST = "c10d.broadcast_"
"""DistributedDataParallel broadcasts its parameters when it is made (torch/nn/parallel/
distributed.py, _sync_module_states)."""

Timed = tuple[Entry, Transfer | None]


@dataclass(frozen=True, slots=True)
class Evidence:
    """That a change of the script may be worth a run."""

    text: Prose
    what_if: str
    """The change, as `tally run --what-if` spells it."""

    @property
    def sentence(self) -> Prose:
        return (*self.text, f"; --what-if {self.what_if} may help.")


def evidence(ledger: Ledger, collectives: Sequence[Timed]) -> Iterator[Evidence]:
    """Evidence for each change that is worth a run of its own."""
    backward = [timed for timed in collectives if timed[0].op.phase is Phase.BACKWARD]
    gathers = [timed for timed in backward if timed[0].call.name == GATHER]
    reductions = [timed for timed in backward if timed[0].call.name == REDUCE]
    if is_much(ledger, gathers):
        text: Prose = (
            "Gathers of the backward pass are exposed for ",
            Number(exposed_by_s(ledger, gathers), Unit.SECONDS),
            ", and keeping them takes up to ",
            Number(sum(entry.cost.network_bytes for entry, _ in gathers), Unit.BYTES),
        )
        yield Evidence(text, "reshard_after_forward=False")
    if is_much(ledger, reductions) and BROADCAST in {call.name for call in ledger.trace.calls}:
        largest = max(entry.cost.network_bytes for entry, _ in reductions)
        latent = [
            transfer for _, transfer in reductions if transfer and transfer.bound == "latency"
        ]
        is_latent = 2 * len(latent) > len(reductions)
        size = max(1, round(largest / MIB * (4 if is_latent else 0.5)))
        text = (
            "Reductions of gradients are exposed for ",
            Number(exposed_by_s(ledger, reductions), Unit.SECONDS),
            ", the largest of ",
            Number(largest, Unit.BYTES),
            *((", most bound by latency",) if is_latent else ()),
        )
        yield Evidence(text, f"bucket_cap_mb={size}")


def exposed_by_s(ledger: Ledger, collectives: Sequence[Timed]) -> float:
    return fsum(ledger.slot(entry).exposed_s for entry, _ in collectives)


def is_much(ledger: Ledger, collectives: Sequence[Timed]) -> bool:
    return exposed_by_s(ledger, collectives) > LEAST_SHARE * ledger.total.seconds
