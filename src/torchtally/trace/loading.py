"""What the script's DataLoaders took on the host that ran it: in no predicted time."""

from torchtally.trace.op import Frame
from torchtally.trace.record import Count, Record


class BatchLoading(Record, frozen=True):
    """The batches of one DataLoader: read from the dataset and collated."""

    frame: Frame | None
    """The user's line that iterates over it, where it is known."""
    workers: Count
    """Processes that load batches beside each other; 0: the script itself."""
    batches: Count
    seconds: float
    """By the host's clock, of all batches, in whichever process."""

    @property
    def batch_s(self) -> float:
        """Seconds from one batch to the next, if nothing else holds them up."""
        return self.seconds / max(1, self.batches) / max(1, self.workers)
