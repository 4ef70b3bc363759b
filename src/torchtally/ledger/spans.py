"""When each operator of a ledger runs: its beginning and its end, where a slot is only how long."""

from collections.abc import Sequence

from torchtally.ledger.ledger import Ledger
from torchtally.timing.ranks import Span
from torchtally.trace import Phase


def spans_of(ledger: Ledger) -> Sequence[Span]:
    """Spans of every entry, by its number, in seconds since the run began. Where evaluation is
    timed apart (`Times.is_evaluation_apart`), it has a clock of its own, which begins at zero, too.
    """
    times, evaluation = ledger.times, Phase.EVALUATION
    if times.spans:
        return times.spans
    spans: list[Span] = []
    done_s = {False: 0.0, True: 0.0}
    for entry, slot in zip(ledger.kernels(ledger.entries), times.slots, strict=True):
        clock = times.is_evaluation_apart and entry.op.phase is evaluation
        before_s = done_s[clock]
        end_s = done_s[clock] = before_s + slot.seconds
        # the difference may round to before the end of the operator before
        spans.append(Span(max(before_s, end_s - slot.kernel_s), end_s))
    return spans
