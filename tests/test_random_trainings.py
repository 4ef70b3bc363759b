"""Trainings drawn at random: laws hold in every view, and the same training is the same twice."""

import pytest

from tests.random_trainings import STEPS, training
from tests.traces import traced
from torchtally.chips import known_chips
from torchtally.ledger import Ledger, account
from torchtally.timing.targets import known_roofline
from torchtally.trace import Trace
from torchtally.views import by
from torchtally.views.utilisation import laws_broken, model_utilisation

pytestmark = pytest.mark.one_case_in(60)

TRAININGS, IN_EACH = 300, 5
CHIPS = [known.name for known in known_chips() if known.vendor == "NVIDIA"]
AT_PEAK = ("category", "peak-line", "peak-storage")
OF_WORK = ("op", "phase", "kind")


def run(number: int) -> Trace:
    return traced(training(number), CHIPS[number % len(CHIPS)])


def facts(trace: Trace) -> dict[str, object]:
    """All but what a clock has measured: the script's own code between operators."""
    return {name: getattr(trace, name) for name in trace.__struct_fields__ if name != "script_work"}


def check_laws(ledger: Ledger) -> None:
    ledger.check()
    assert laws_broken(ledger) == []
    for key in AT_PEAK:
        assert sum(map(int, by(ledger, key).column("bytes"))) == ledger.memory.peak_bytes, key
    for column in ("flops", "bytes_moved"):
        sums = {key: sum(map(int, by(ledger, key).column(column))) for key in OF_WORK}
        assert len(set(sums.values())) == 1, (column, sums)
    shown = model_utilisation(ledger)
    if shown is not None and shown.fraction is not None:
        assert 0 <= shown.fraction <= 1


@pytest.mark.parametrize("first", range(0, TRAININGS, IN_EACH))
def test_laws_hold_and_two_runs_are_equal(first: int) -> None:
    for number in range(first, first + IN_EACH):
        trace, again = (run(number) for _ in range(2))  # from one line: stacks are facts, too
        for step in (None, "all"):
            check_laws(account(trace, roofline=known_roofline(trace.chip), step=step))
        assert facts(again) == facts(trace), number
        assert len(trace.step_ends) == STEPS
