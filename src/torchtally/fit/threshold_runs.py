"""Runs of a script for a threshold: one after the other, each accounted for."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from torchtally.errors import UsageError
from torchtally.fit.advisor import WAIT_S
from torchtally.fit.argument import Argument
from torchtally.fit.threshold import StepPoint, ThresholdSearch, check_scope, point_of
from torchtally.ledger import account
from torchtally.runs.children import Children, EndedChild, sigterm_raises
from torchtally.runs.probes import PRELOAD
from torchtally.runs.protocol import TraceRequest, TraceResult
from torchtally.timing.roofline import Roofline
from torchtally.trace import Trace


def search_runs(
    search: ThresholdSearch,
    argument: Argument,
    request: TraceRequest,
    roofline: Roofline,
    say: Callable[[str], None],
) -> None:
    """Run the script at one value after the other, until the search has its answer.

    Raises UsageError where its goal is of a line or module that a run does not have.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tally-threshold-") as folder,
        sigterm_raises(),
        Children("fit", preload=PRELOAD) as children,
    ):
        while (value := search.next_value()) is not None:
            say(f"trying {argument.name or 'value'} {value}")
            place = Path(folder, str(value))
            arguments = argument.among(request.arguments, value)
            children.start(value, replace(request, arguments=arguments, place=os.fspath(place)))
            while not (ended := children.collect_ended(WAIT_S)):
                pass
            search.learn(_point(value, ended[0], place, search, roofline))


def _point(
    value: int, ended: EndedChild, place: Path, search: ThresholdSearch, roofline: Roofline
) -> StepPoint:
    answer = ended.answer(TraceResult)
    failure = f"its process ended with {ended.how}" if answer is None else answer.failure
    if failure:
        return StepPoint(value, failure)
    ledger = account(Trace.load(place), roofline=roofline)
    place.unlink()
    if wrong := check_scope(ledger, search.goal):
        raise UsageError(wrong)
    return point_of(value, ledger, search.goal)
