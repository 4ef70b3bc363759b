"""Models and optimizers that stay on the device while another one is trained."""

from bisect import bisect_right
from collections.abc import Iterator

from torchtally.diagnosis.diagnosis import Diagnosis
from torchtally.diagnosis.peak import HeldStorage, MemoryPeak
from torchtally.diagnosis.rule import rule
from torchtally.memory import Category
from torchtally.table import Number
from torchtally.units import Unit

OF_MODELS = frozenset({Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE})
MOST_PER_PARAMETER = 5
"""Bytes of a model for each of its parameters' own: gradients, two moments and a master copy. State
beyond it is of parameters that are used, by an optimizer that steps now and then.
"""


@rule("idle_models")
def idle_models(peak: MemoryPeak) -> Iterator[Diagnosis]:
    """Find what is held for a model that the whole step of the peak does not touch."""
    trace = peak.ledger.trace
    step = bisect_right(trace.step_ends, peak.tick)
    if not 1 <= step < len(trace.step_ends):
        return  # in the first step other models are yet to come; one that is cut off is not whole
    first, end = trace.step_ends[step - 1], trace.step_ends[step]
    touched = {
        number
        for op in trace.ops
        if first <= op.clock < end
        for number in (*op.inputs, *op.outputs)
    }

    def is_idle(held: HeldStorage) -> bool:
        storage = held.storage
        is_of_model = held.category in OF_MODELS and storage.born < first
        return is_of_model and storage.number not in touched

    idle = [held for held in peak.held if is_idle(held)]
    parameters = [held for held in idle if held.category is Category.PARAMETERS]
    all_bytes, own_bytes = (sum(held.storage.bytes for held in part) for part in (idle, parameters))
    if all_bytes > MOST_PER_PARAMETER * own_bytes:
        return
    yield from peak.diagnose(
        "idle_models",
        is_idle,
        lambda idle_bytes: (
            Number(idle_bytes, Unit.BYTES),
            " at the peak are parameters, gradients and optimizer state that its step does not"
            " use: another model's, or a part that is idle.",
        ),
        "Measure models one by one, or delete what is done (del, zero_grad) before the next.",
    )
