"""What is the largest model, batch or sequence that fits these chips?"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.architecture.shapes import scale_to
from torchtally.plan.capacity import largest, largest_parameters
from torchtally.plan.closed_form import Bytes, Chips, Count, closed_form
from torchtally.plan.memory import bytes_per_parameter
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.pricing import Pricing
from torchtally.plan.parallel.pricing import step as step_of
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.fit import (
    batch_in_words,
    capacity_of,
    convention_in_words,
    memory_table,
    rates_as_written,
    run_in_words,
    step_as_written,
    written_in_words,
)
from torchtally.plan.questions.limits import most_tokens
from torchtally.plan.questions.plan_options import MODEL, STEP
from torchtally.plan.questions.request import Request, subject
from torchtally.plan.questions.uses import Fields, uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.questions.workload import (
    USUAL_VOCABULARY,
    plain_layout,
    with_shape,
    workload_of,
)
from torchtally.units import Unit, format_bytes

STEP_PARAMETERS = 10_000_000
"""The granularity of the search."""
MOST_PARAMETERS = 10**15
MOST_SEQUENCES = 1 << 24
MOST_TOKENS = 1 << 32
LEARNED = "The model has learned no more positions: memory would hold more tokens."


def _used(request: Request) -> Fields:
    used = {"largest", "recipe", "optimizer", "memory_bytes", "sequence"}
    if request.sequence is not None:
        used |= {"micro_batch", "global_batch", "recompute", "attention", "implementation", "loss"}
    return used


@uses(_used)
def largest_model(request: Request) -> Answer:
    """Largest model by the bytes that each parameter takes; and with activations, where a sequence
    is given.
    """
    cluster = request.of_cluster
    capacity = _all_memory(cluster.count, capacity_of(request))
    each = bytes_per_parameter(request.recipe, request.optimizer)
    bound = largest_parameters(capacity, each)
    how = f"{request.optimizer.name}, {request.recipe.name}"
    if request.sequence is None:
        return Answer(
            question="largest-model",
            headline=(
                bound,
                " parameters fit ",
                *chips_text(cluster),
                f" with {how}, before ",
                "activations",
            ),
            figures=(bound, each, capacity),
            assumptions=(
                "Parameters, gradients and optimizer state are sharded over all chips (FSDP).",
            ),
            unknown=(
                "activations and the CUDA context (count them with --sequence 4096, --micro-batch)",
            ),
        )
    size, step = _largest_with_activations(request, int(bound.value))
    return Answer(
        question="largest-model",
        headline=(
            size,
            " parameters fit ",
            *chips_text(cluster),
            f" with {how} and sequences of {request.sequence} tokens",
        ),
        figures=(size, bound.with_name("before activations"), each, step.memory.total, capacity),
        tables=(memory_table(step.memory),),
        assumptions=(
            f"Assumed shape: width = 128 x layers, SwiGLU, a vocabulary of {USUAL_VOCABULARY}.",
            batch_in_words(step.layout),
            *run_in_words(step.layout),
            *convention_in_words(step, request),
        ),
    )


@uses(MODEL, "largest", STEP - {"micro_batch", "global_batch"})
def largest_batch(request: Request) -> Answer:
    """The largest micro-batch that fits one chip."""
    request = with_shape(replace(request, global_batch=None))
    workload, assumptions = workload_of(request)

    def layout(size: int) -> Layout:
        return plain_layout(request, workload, micro_batch=size)

    as_written = written_batch(request, workload, layout)
    count = as_written
    if count is None:
        count = largest(lambda size: _fits(workload, layout(size)), most=MOST_SEQUENCES)
    if not count:
        raise UsageError(_nothing_fits(request, workload, layout(1)))
    # Written once more: those of the search have no working.
    written = None if as_written is None else step_as_written(request, workload, layout(count))
    step = step_of(workload, layout(count))
    memory, speed, used, table = (
        step.memory.total,
        step.tokens_per_s,
        step.mfu,
        memory_table(step.memory),
    )
    how: tuple[str, ...] = run_in_words(step.layout)
    if written is not None:
        speed, used, _ = rates_as_written(request, workload, step, written)
        memory, table = written.memory, written.memory_by_category
        how = written_in_words(request, step.layout, written)
    answer = of(count, Unit.COUNT).with_name("largest micro-batch")
    sequences = _all_sequences(workload.cluster.count, answer)
    return Answer(
        question="largest-batch",
        headline=(
            answer,
            f" {'sequence' if count == 1 else 'sequences'} of {workload.sequence} tokens"
            f" {'fits' if count == 1 else 'fit'} each of ",
            *chips_text(workload.cluster),
            f" with {subject_text(request)}",
        ),
        figures=(answer, sequences, memory, speed, used),
        tables=(table,),
        assumptions=(*assumptions, *how, *convention_in_words(step, request)),
    )


def written_batch(
    request: Request, workload: Workload, layout: Callable[[int], Layout]
) -> int | None:
    """The largest micro-batch whose written step fits, 0 where none does; None where a program
    lacks a size that was tried.
    """
    is_complete = True

    def fits(size: int) -> bool:
        nonlocal is_complete
        step = step_as_written(request, workload, layout(size))
        is_complete = is_complete and step is not None
        return step is not None and step.memory.value <= capacity

    capacity = workload.cluster.chip.total_memory_bytes
    count = largest(fits, most=MOST_SEQUENCES)
    return count if is_complete else None


@uses(MODEL, "largest", STEP - {"sequence", "global_batch"})
def largest_sequence(request: Request) -> Answer:
    """The longest sequence that one chip can train on."""
    request = with_shape(replace(request, global_batch=None, sequence=request.sequence or 1))
    workload, assumptions = workload_of(request)
    layout = plain_layout(request, workload)
    most = most_tokens(workload.model, MOST_TOKENS)
    count = largest(lambda sequence: _fits(replace(workload, sequence=sequence), layout), most)
    if not count:
        raise UsageError(_nothing_fits(request, replace(workload, sequence=1), layout))
    step = step_of(replace(workload, sequence=count), layout)
    answer = of(count, Unit.TOKENS).with_name("longest sequence")
    return Answer(
        question="largest-sequence",
        headline=(
            f"{count} tokens in a sequence fit each of ",
            *chips_text(workload.cluster),
            f" with {subject_text(request)}",
        ),
        figures=(answer, step.memory.total, step.tokens_per_s, step.mfu),
        tables=(memory_table(step.memory),),
        assumptions=(
            *assumptions,
            *((LEARNED,) if count == most else ()),
            batch_in_words(layout),
            *run_in_words(layout),
            *convention_in_words(step, request),
        ),
        unknown=_beyond(workload, count),
    )


@closed_form("memory of all chips", Unit.BYTES)
def _all_memory(chips: Chips, memory: Bytes) -> str:
    return "chips * memory"


@closed_form("sequences of all chips", Unit.COUNT)
def _all_sequences(chips: Chips, micro_batch: Count) -> str:
    return "chips * micro_batch"


LARGEST: Mapping[str, Callable[[Request], Answer]] = {
    "model": largest_model,
    "batch": largest_batch,
    "sequence": largest_sequence,
}


def _fits(workload: Workload, layout: Layout) -> bool:
    return _memory_bytes(workload, layout) <= workload.cluster.chip.total_memory_bytes


def _memory_bytes(workload: Workload, layout: Layout) -> int:
    return int(Pricing(workload).memory(layout).total.value)


def _largest_with_activations(request: Request, bound: int) -> tuple[Quantity, Step]:
    """Assumed shapes of growing size, until one does not fit."""

    def workload(parameters: int) -> Workload:
        model = scale_to(parameters, vocabulary=USUAL_VOCABULARY)
        return workload_of(replace(request, subject=subject(model)))[0]

    first = 40
    most = max(min(bound, MOST_PARAMETERS) // STEP_PARAMETERS, first)

    def fits(count: int) -> bool:
        tried = workload((first + count) * STEP_PARAMETERS)
        return _fits(tried, plain_layout(request, tried))

    count = largest(fits, most=most)
    if not count:
        smallest = workload(first * STEP_PARAMETERS)
        raise UsageError(_nothing_fits(request, smallest, plain_layout(request, smallest)))
    fitting = workload((first + count) * STEP_PARAMETERS)
    size = subject(fitting.model).parameters.with_name("largest model")
    return size, step_of(fitting, plain_layout(request, fitting))


def _beyond(workload: Workload, count: int) -> tuple[str, ...]:
    context = workload.model.context
    if context is None or count <= context:
        return ()
    return (f"quality beyond the context length of {workload.model.name}: {context} tokens",)


def _nothing_fits(request: Request, workload: Workload, layout: Layout) -> str:
    written = step_as_written(request, workload, layout)
    size = _memory_bytes(workload, layout) if written is None else int(written.memory.value)
    chip = workload.cluster.chip
    return (
        f"out of memory: one sequence of {workload.sequence} tokens on {workload.cluster.count} "
        f"{chip.name} takes {format_bytes(size)} of {format_bytes(chip.total_memory_bytes)} on a "
        "chip. More chips, --optimizer adamw-8bit, --recompute full or --search may help."
    )
