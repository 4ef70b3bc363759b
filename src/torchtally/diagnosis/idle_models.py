"""Models and optimizers that stay on the device while another one is trained."""

from bisect import bisect_right
from collections.abc import Iterator

from torchtally.diagnosis.holding import crowded_tick, heaviest_line, held_with_makers
from torchtally.diagnosis.rule import LEAST_SHARE, Diagnosis, rule
from torchtally.ledger import Ledger
from torchtally.memory import Category
from torchtally.table import Number
from torchtally.units import Unit

OF_MODELS = frozenset({Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE})


@rule("idle_models")
def idle_models(ledger: Ledger) -> Iterator[Diagnosis]:
    """What is held at the peak for a model that the step of the peak does not touch."""
    tick, peak_bytes, ends = crowded_tick(ledger), ledger.memory.peak_bytes, ledger.trace.step_ends
    step = bisect_right(ends, tick)
    if step < 1:
        return  # before the second step, what another model needs is yet to come
    first, end = ends[step - 1], ends[step] if step < len(ends) else ledger.trace.end
    touched = {
        number
        for op in ledger.trace.ops
        if first <= op.clock < end
        for number in (*op.inputs, *op.outputs)
    }
    is_whole = step < len(ends)
    idle = [
        (storage, entry)
        for storage, category, entry in held_with_makers(ledger, tick)
        if category in OF_MODELS and storage.number not in touched and storage.born < first
    ]
    idle_bytes = sum(storage.bytes for storage, _ in idle)
    if not is_whole or idle_bytes < LEAST_SHARE * peak_bytes:
        return
    yield Diagnosis(
        "idle_models",
        (Number(idle_bytes, Unit.BYTES), " at the peak are parameters, gradients and optimizer"
         " state that its step does not use: another model's."),
        "Measure models one by one, or delete what is done (del, zero_grad) before the next.",
        heaviest_line(idle),
        idle_bytes,
        idle_bytes / peak_bytes,
    )  # fmt: skip
