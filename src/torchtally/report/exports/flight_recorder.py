"""Collectives of every rank as PyTorch's flight recorder dumps them, for `torchfrtrace`."""

import pickle

from torchtally.ledger import Ledger
from torchtally.report.exports import Exported, Wanted
from torchtally.views.flight_record import flight_record

SUMMARY = "collectives of every rank, for torchfrtrace; FILE is a prefix: FILE0, FILE1, ..."
SUFFIX = ".rank_"


def export(ledger: Ledger, wanted: Wanted) -> Exported:
    """A pickle for each rank that ran, by its number; of the whole run."""
    ranks = (ledger, *ledger.others)
    return Exported(
        {
            str(rank.trace.world.rank): pickle.dumps(
                flight_record(rank) | {"exporter": "torchtally"}
            )
            for rank in ranks
        }
    )
