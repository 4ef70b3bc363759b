"""The script's own waiting (`time.sleep`), which a trace has among its operators.

So it has a line, a module and a step as an operator has, and takes the host's time where it was.
"""

from torchtally.trace.op import Call

SLEEP = "time.sleep"
NANOSECONDS = "nanoseconds"


def sleep_call(seconds: float) -> Call:
    return Call(SLEEP, "", (), (), ((NANOSECONDS, round(seconds * 1e9)),))


def sleep_s(call: Call) -> float:
    """How long the host sleeps; 0 for a call of another name."""
    nanoseconds = call.literal(NANOSECONDS) if call.name == SLEEP else 0
    return nanoseconds / 1e9 if isinstance(nanoseconds, int) else 0.0
