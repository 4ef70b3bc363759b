"""The memory of a run as a pickle that pytorch.org/memory_viz and torch.cuda._memory_viz open."""

import pickle

from torchtally.errors import UsageError
from torchtally.ledger import Ledger
from torchtally.memory.allocator.snapshot import SNAPSHOT_PROTOCOL
from torchtally.report.exports import Exported, Wanted
from torchtally.views.memory_snapshot import memory_snapshot

SUMMARY = "every allocation and free with its line, for pytorch.org/memory_viz"
SUFFIX = ".snapshot.pickle"


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """One pickle; of the other ranks that ran one each, beside it.

    Raises UsageError for a profiler's trace without memory events.
    """
    if not ledger.knows_memory:
        raise UsageError(
            f"{ledger.trace.script}: recorded without memory events, so there is no memory to "
            "show. Record with profile_memory=True."
        )
    parts: dict[str, str | bytes] = {}
    remarks: list[str] = []
    for rank in (ledger, *ledger.others):
        record = memory_snapshot(rank, rank.reported_period if wanted.is_of_a_period else None)
        number = "" if rank is ledger else f".rank{rank.trace.world.rank}"
        document = record.document | {"exporter": "torchtally"}
        parts[number] = pickle.dumps(document, protocol=SNAPSHOT_PROTOCOL)
        remarks += record.disagreements
    return Exported(parts, tuple(remarks))
