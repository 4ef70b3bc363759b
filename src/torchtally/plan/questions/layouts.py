"""Every parallel layout of these chips, the fastest first, with what bounds each."""

from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.closed_form import TokenPerS, Tokens, closed_form
from torchtally.plan.flops import Recompute
from torchtally.plan.frameworks.configuration import FRAMEWORKS
from torchtally.plan.parallel.degrees import LEGEND, layout_in_short, layout_text
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.search import Choices, Ranking, search
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.quantity import Quantity
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.bill import bill, unknown_costs
from torchtally.plan.questions.fit import (
    FULL_MEMORY,
    convention_in_words,
    implementation_in_words,
    kernel_in_words,
    loss_in_words,
    memory_table,
    overlap_in_words,
    pace_in_words,
    range_in_words,
    time_table,
)
from torchtally.plan.questions.plan_options import MODEL, STEP
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.uses import Fields, adapted_fields, uses
from torchtally.plan.questions.words import bound_in_short, run_text, stack_in_words, trained_text
from torchtally.plan.questions.workload import with_shape, workload_of
from torchtally.table import Column, Table
from torchtally.units import Unit, format_bytes

ROWS = 10
USUAL_BATCH_TOKENS = 4_000_000
"""In one step: what Llama 2 was trained with, and Llama 3 began with (arXiv 2307.09288, section
2.2; 2407.21783, section 3.4.1)."""


class NoLayoutFitsError(UsageError):
    """A model that no layout fits on these chips."""


def _costs(request: Request) -> Fields:
    return () if request.tokens is None else ("usd_per_hour",)


@uses(MODEL, STEP, "tokens", "rows", _costs, adapted_fields)
def layouts(request: Request) -> Answer:
    """The fastest layouts that fit, and all about the first."""
    request = with_shape(request)
    ranking, batch, assumptions = rank(request)
    best = ranking.steps[0]
    count = request.of_chips
    seconds = _whole_training(request, best)
    return Answer(
        question="layouts",
        headline=(
            f"{layout_text(best.layout)}: ",
            best.seconds,
            *range_in_words(best),
            f" a step of {batch} sequences, ",
            best.mfu,
            f" MFU predicted for {trained_text(request)} on ",
            *run_text(request),
        ),
        figures=(
            best.seconds.with_name("step"),
            best.tokens_per_s,
            best.mfu,
            best.memory.total,
            *seconds,
            *(bill(request, count, seconds[0], request.chip) if seconds else ()),
        ),
        tables=(
            _table(ranking, request.rows or ROWS),
            time_table(best, ranking.workload),
            memory_table(best.memory),
        ),
        assumptions=(
            *stack_in_words(request),
            *assumptions,
            implementation_in_words(best.layout),
            *loss_in_words(request),
            kernel_in_words(best.layout, ranking.workload),
            *pace_in_words(ranking.workload),
            f"{ranking.tried} layouts were tried, {ranking.fitting} of them fit; "
            f"{ranking.invalid} more combinations of degrees are impossible.",
            *overlap_in_words(best),
            *convention_in_words(best, request),
            FULL_MEMORY,
        ),
        unknown=() if request.tokens is None else unknown_costs(request, request.chip),
        config=config_of(request, best.layout, ranking.workload),
    )


def rank(request: Request) -> tuple[Ranking, int, tuple[str, ...]]:
    """All layouts, the sequences of a step, and the assumptions.

    Raises UsageError with the missing bytes where no layout fits.
    """
    workload, assumptions = workload_of(request)
    batch = request.global_batch
    if batch is None:
        batch = usual_batch(workload.sequence, request.of_cluster.count)
        assumptions += (
            f"Steps of {batch} sequences: about {USUAL_BATCH_TOKENS / 1e6:g} M tokens, or one "
            "sequence per chip (--batch).",
        )
    ranking = search_of(request, workload, batch, keep=request.rows or ROWS)
    if not ranking.steps:
        raise NoLayoutFitsError(_nothing(request, ranking, batch))
    return ranking, batch, assumptions


def search_of(request: Request, workload: Workload, batch: int, *, keep: int) -> Ranking:
    """The fastest layouts of these chips for steps of so many sequences."""
    return search(
        workload, batch, choices=choices_of(request, workload), keep=keep, progress=request.progress
    )


def usual_batch(sequence: int, chips: int) -> int:
    """The default sequences of a step: a usual number of tokens, as a multiple of the chips.

    At least one for every chip, and a power of two times their number.
    """
    batch = chips
    while 2 * batch * sequence <= USUAL_BATCH_TOKENS:
        batch *= 2
    return batch


def choices_of(request: Request, workload: Workload) -> Choices:
    """What the search may vary: everything that the user did not set."""
    every = [Recompute.NONE, Recompute.FULL]
    usual = Implementation.FUSED if request.lora is None else Implementation.EAGER
    how = request.implementation or usual
    model, sequence = workload.model, workload.sequence
    kernel = request.kernel or usual_kernel(model, request.recipe, sequence, how)
    if kernel is AttentionKernel.MATH:
        # Fused attention recomputes its scores anyway.
        every.insert(1, Recompute.SELECTIVE)
    recomputes = tuple(every) if request.recompute is None else (request.recompute,)
    chosen = _choices(request, recomputes, kernel, how)
    if not request.framework:
        return chosen
    framework = FRAMEWORKS[request.framework]
    framework.check(model)
    return replace(chosen, is_allowed=framework.is_its)


def config_of(request: Request, layout: Layout, workload: Workload) -> str:
    """The layout as the framework's that was asked for; "" for none."""
    if not request.framework:
        return ""
    framework = FRAMEWORKS[request.framework]
    if not framework.is_its(layout):
        raise UsageError(f"{framework.name} cannot express all of {layout_text(layout)}.")
    return framework.written(layout, workload)


def _choices(
    request: Request,
    recomputes: tuple[Recompute, ...],
    kernel: AttentionKernel,
    how: Implementation,
) -> Choices:
    return Choices(
        recomputes=recomputes,
        kernel=kernel,
        implementation=how,
        most_micro_batch=request.micro_batch or Choices().most_micro_batch,
    )


def _nothing(request: Request, ranking: Ranking, batch: int) -> str:
    where = f"{request.of_cluster.count} {request.chip.name}"
    if ranking.smallest is None:
        return (
            f"No layout of {where} is possible for steps of {batch} sequences: give a --batch with "
            "more divisors, or another number of chips."
        )
    least = ranking.smallest
    return (
        f"{trained_text(request)} does not fit {where} in any of {ranking.tried} layouts. The "
        f"smallest ({layout_text(least.layout)}) takes "
        f"{format_bytes(int(least.memory.total.value))} of "
        f"{format_bytes(ranking.capacity_bytes)} on a chip, {format_bytes(ranking.missing_bytes)} "
        "too much. More chips, a smaller --sequence or --optimizer adamw-8bit may help."
    )


def _whole_training(request: Request, best: Step) -> tuple[Quantity, ...]:
    """Seconds of all tokens at the best layout's speed."""
    return () if request.tokens is None else (_time_s(request.tokens, best.tokens_per_s),)


@closed_form("training time", Unit.SECONDS)
def _time_s(tokens: Tokens, tokens_per_s: TokenPerS) -> str:
    return "tokens / tokens_per_s"


def _table(ranking: Ranking, rows: int) -> Table:
    return Table(
        title="Layouts, fastest first",
        columns=(
            Column("step_s", "step", Unit.SECONDS),
            Column("mfu", "MFU", Unit.FRACTION),
            Column("memory_bytes", "memory", Unit.BYTES),
            Column("bubble_share", "bubble", Unit.FRACTION, rank=2),
            Column("network_share", "network", Unit.FRACTION, rank=1),
            Column("bound", "bound by", Unit.WORD),
            Column("layout", "layout", Unit.WORD),
        ),
        rows=tuple(
            (
                step.seconds.value,
                step.mfu.value,
                step.memory.total.value,
                step.parts["bubble"].value / step.seconds.value,
                step.parts.network_s / step.seconds.value,
                bound_in_short(step.bound),
                layout_in_short(step.layout),
            )
            for step in ranking.steps[:rows]
        ),
        totals=(None,) * 7,
        left_out=ranking.fitting - min(rows, len(ranking.steps)),
        note=LEGEND,
    )
