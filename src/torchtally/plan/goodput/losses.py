"""What failures take of a training: work that is done again, and starting again.

Failures come at a constant rate, whatever runs: in work, in a save, in a restart. What is expected
is then exact, segment by segment (Daly 2006, equation 20); `simulation.py` plays the same.
"""

import math

from torchtally.errors import UsageError
from torchtally.plan.closed_form import Chips, Count, Fraction, Hours, Seconds, closed_form
from torchtally.plan.quantity import Quantity, derive
from torchtally.units import Unit

DALY = "Daly 2006, Future Generation Computer Systems 22(3), equation 20"
ERLANG = "Erlang 1917; repairs take any time, of this mean"
MOST_SPARES = 100
"""Terms of Erlang's formula that numbers hold."""
EXPONENTIAL = "failures at a constant rate"


@closed_form("mean time between failures", Unit.SECONDS)
def job_mtbf_s(failure_chip_hours: Hours, chips: Chips) -> str:
    """Mean time of a job on so many chips, where one failure stops all of them."""
    return "3600 * failure_chip_hours / chips"


@closed_form("mean time between interruptions", Unit.SECONDS)
def joint_mtbf_s(mtbf_s: Seconds, reclaimed_s: Seconds) -> str:
    """Mean time of failures and of reclaimed nodes together: rates add."""
    return "1 / (1 / mtbf_s + 1 / reclaimed_s)"


@closed_form("repeated work", Unit.SECONDS, DALY, EXPONENTIAL)
def repeated_s(segments: Count, work_s: Seconds, save_s: Seconds, mtbf_s: Seconds) -> str:
    """Work, and saves, that a failure destroys before the segment's save is done."""
    return "segments * (mtbf_s * (exp((work_s + save_s) / mtbf_s) - 1) - work_s - save_s)"


@closed_form("restarts", Unit.SECONDS, DALY, EXPONENTIAL)
def restarts_s(
    segments: Count, work_s: Seconds, save_s: Seconds, restart_s: Seconds, mtbf_s: Seconds
) -> str:
    """Restarts after failures, those that fail themselves among them."""
    return (
        "segments * (exp((work_s + save_s) / mtbf_s) - 1) * mtbf_s * (exp(restart_s / mtbf_s) - 1)"
    )


@closed_form("failures", Unit.NUMBER)
def failures(total_s: Seconds, mtbf_s: Seconds) -> str:
    """Failures that are expected in all of the time."""
    return "total_s / mtbf_s"


@closed_form("work repeated for unwritten checkpoints", Unit.SECONDS, "", "to first order")
def unwritten_s(
    segments: Count, work_s: Seconds, save_s: Seconds, written_s: Seconds, mtbf_s: Seconds
) -> str:
    """Seconds of one more segment, where a failure comes before the last checkpoint is written."""
    return (
        "segments * exp((work_s + save_s) / mtbf_s) * (1 - exp(-written_s / mtbf_s))"
        " * (work_s + save_s)"
    )


@closed_form("slower with fewer nodes", Unit.SECONDS)
def slower_s(work_s: Seconds, repair_s: Seconds, mtbf_s: Seconds, nodes: Count) -> str:
    """Seconds that nodes that are left take longer, while failed ones are repaired."""
    return "work_s * repair_s / (mtbf_s * nodes - repair_s)"


@closed_form("goodput", Unit.FRACTION)
def goodput(training_s: Seconds, total_s: Seconds) -> str:
    """The share of the time in which steps are done that count."""
    return "training_s / total_s"


@closed_form("effective MFU", Unit.FRACTION)
def effective_mfu(mfu: Fraction, goodput: Fraction) -> str:
    """MFU of the whole time."""
    return "mfu * goodput"


def no_spare(spares: int, repair_s: Quantity, mtbf_s: Quantity) -> Quantity:
    """The share of failures that find all spare nodes in repair: Erlang's loss formula."""
    if spares > MOST_SPARES:
        raise UsageError(f"--spares: at most {MOST_SPARES} nodes.")
    terms = ["1"]
    for place in range(1, spares + 1):
        terms.append(f"load ** {place} / {math.factorial(place)}")
    load = derive("nodes in repair", Unit.NUMBER, "repair_s / mtbf_s", repair_s=repair_s,
                  mtbf_s=mtbf_s)  # fmt: skip
    formula = f"{terms[-1]} / ({' + '.join(terms)})"
    return derive("failures without a spare", Unit.FRACTION, formula, ERLANG, load=load)
