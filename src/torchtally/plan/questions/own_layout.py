"""What does a layout of one's own take, and why is the fastest one faster?"""

from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.degrees import DEGREES, invalidities, layout_in_short, layout_text
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.layout_words import parse_layout
from torchtally.plan.parallel.pricing import step as step_of
from torchtally.plan.parallel.search import fastest as fastest_of
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.fit import (
    FULL_MEMORY,
    SMALLEST_PART,
    capacity_of,
    claim_of,
    convention_in_words,
    fit_as_written,
    implementation_in_words,
    kernel_in_words,
    loss_in_words,
    memory_table,
    overlap_in_words,
    pace_in_words,
    range_in_words,
    step_as_written,
    time_table,
)
from torchtally.plan.questions.layouts import choices_of, config_of
from torchtally.plan.questions.plan_options import MODEL, STEP
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.uses import adapted_fields, uses
from torchtally.plan.questions.words import run_text, stack_in_words, trained_text
from torchtally.plan.questions.workload import with_shape, workload_of
from torchtally.table import Column, Table
from torchtally.units import Unit


@uses(MODEL, STEP, adapted_fields)
def own_layout(request: Request) -> Answer:
    """Its step and its memory, beside those of the fastest layout for the same batch."""
    request = with_shape(request)
    workload, assumptions = workload_of(request)
    layout = layout_of(request, workload)
    step = step_of(workload, layout)
    written = step_as_written(request, workload, layout)
    if written is not None:
        answer = fit_as_written(request, workload, step, written, assumptions)
        return replace(answer, question="own-layout", config=config_of(request, layout, workload))
    choices = choices_of(request, workload)
    fastest = fastest_of(workload, layout.global_batch, choices=choices)
    capacity = capacity_of(request)
    return Answer(
        question="own-layout",
        headline=(
            f"{layout_text(layout)}: ",
            step.seconds,
            *range_in_words(step),
            f" a step of {layout.global_batch} sequences, ",
            step.mfu,
            f" MFU predicted for {trained_text(request)} on ",
            *run_text(request),
            f"; {claim_of(step.memory.total, capacity)}: ",
            step.memory.total,
            " of ",
            capacity,
            *_beside(step, fastest),
        ),
        figures=(step.seconds.with_name("step"), step.tokens_per_s, step.mfu, step.memory.total),
        tables=(
            *(() if fastest is None else (comparison(step, fastest),)),
            time_table(step, workload),
            memory_table(step.memory),
        ),
        assumptions=(
            *stack_in_words(request),
            *assumptions,
            *uneven_in_words(layout, workload),
            implementation_in_words(layout),
            *loss_in_words(request),
            kernel_in_words(layout, workload),
            *pace_in_words(workload),
            *overlap_in_words(step),
            *convention_in_words(step, request),
            FULL_MEMORY,
        ),
        config=config_of(request, layout, workload),
    )


def layout_of(request: Request, workload: Workload) -> Layout:
    """The one that the request says. Raises UsageError with every reason why it is impossible."""
    choices = choices_of(request, workload)
    base = Layout(
        kernel=choices.kernel,
        implementation=choices.implementation,
        recompute=request.recompute or Layout().recompute,
        micro_batch=request.micro_batch or 1,
    )
    chips = request.of_cluster.count
    is_split = None if request.stack is None else request.stack.value("sequence-parallel")
    layout = parse_layout(
        request.layout or "",
        chips,
        request.global_batch,
        base,
        is_sequence_parallel=is_split is not False,
    )
    layout = _spared(layout, request, workload)
    reasons = invalidities(
        layout,
        workload.model,
        workload.cluster,
        sequence=workload.sequence,
        global_batch=request.global_batch,
    )
    if reasons:
        raise UsageError(f"--layout {request.layout!r} is impossible: {'; '.join(reasons)}.")
    return layout


def _spared(layout: Layout, request: Request, workload: Workload) -> Layout:
    """The layout, with what the stack's recipe recomputes or moves to the host, unless it says so
    itself.
    """
    stack = request.stack
    if stack is None or layout.recompute is not Recompute.NONE:
        return layout
    modules, offloaded = stack.value("recompute-modules"), stack.value("offload") or 0
    most = workload.model.layers // layout.pipeline
    return replace(
        layout,
        modules=layout.modules or tuple(modules.split("+") if modules else ()),
        offloaded=layout.offloaded or min(offloaded, most),
    )


def uneven_in_words(layout: Layout, workload: Workload) -> tuple[str, ...]:
    """Words on layers that do not divide among the stages: what the fullest one has."""
    layers, stages, chunks = workload.model.layers, layout.pipeline, layout.virtual_stages
    if layers % (stages * chunks) == 0:
        return ()
    longest = f", {-(-layers // (stages * chunks))} in a chunk" if chunks > 1 else ""
    return (
        f"{layers} layers over {stages} stages: the fullest has {-(-layers // stages)}{longest}.",
    )


def _beside(step: Step, fastest: Step | None) -> tuple[str, ...]:
    """How much faster the fastest layout is, in words."""
    if fastest is None or fastest.seconds.value >= step.seconds.value:
        return ()
    gain = step.seconds.value / fastest.seconds.value - 1
    return (f"; {layout_text(fastest.layout)} would be {gain:.1%} faster",)


def comparison(step: Step, fastest: Step) -> Table:
    """Part by part: where the fastest layout gains."""
    words = {degree.name: degree.words.replace("-", " ") for degree in DEGREES}
    rows = [
        (words.get(name, name), _seconds(step, name), _seconds(fastest, name))
        for name in dict.fromkeys((*step.parts.seconds, *fastest.parts.seconds))
    ]
    return Table(
        title=f"Compared with the fastest: {layout_in_short(fastest.layout)}",
        columns=(
            Column("part", "part", Unit.NAME),
            Column("own_s", "yours", Unit.SECONDS),
            Column("fastest_s", "fastest", Unit.SECONDS),
            Column("difference_s", "saved", Unit.SECONDS),
        ),
        rows=tuple(
            (name, own, other, own - other)
            for name, own, other in sorted(rows, key=lambda row: row[2] - row[1])
            if max(own, other) > SMALLEST_PART * step.seconds.value
        ),
        totals=(
            None,
            step.seconds.value,
            fastest.seconds.value,
            step.seconds.value - fastest.seconds.value,
        ),
        note="The fastest layout that fits; --search shows its memory.",
    )


def _seconds(step: Step, name: str) -> float:
    """Seconds of one part; 0 where the step has none of this name."""
    return float(step.parts[name].value) if name in step.parts.seconds else 0.0
