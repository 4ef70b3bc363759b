"""What the script's own code took on the host that ran it: in no predicted time."""

from torchtally.trace.op import Frame
from torchtally.trace.record import Record, Tick


class ScriptWork(Record, frozen=True):
    """Code of the script, and of libraries it calls, that ran before an operator was issued."""

    tick: Tick
    """The operator's."""
    frame: Frame | None
    """The user's line that issues it, where it is known."""
    seconds: float
    """Of the processor, in the thread that issues it."""
