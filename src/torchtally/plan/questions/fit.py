"""Does it fit these chips, what is the memory for, and how fast is a step?"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchtally.plan.activations.setting import AttentionKernel, Implementation, Loss
from torchtally.plan.flops import Recompute, token_flops
from torchtally.plan.parallel.attention import fused_kernels
from torchtally.plan.parallel.chip_memory import ChipMemory
from torchtally.plan.parallel.communication import NCCL
from torchtally.plan.parallel.degrees import DEGREES
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.pace import BEST, TYPICAL, Host
from torchtally.plan.parallel.pricing import step as step_of
from torchtally.plan.parallel.pricing import tokens_in_time
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.parallel.volume import sent_bytes
from torchtally.plan.quantity import Quantity
from torchtally.plan.questions.answer import Answer, Part
from torchtally.plan.questions.plan_options import MODEL, STEP
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.shares import memory_by_category
from torchtally.plan.questions.uses import uses
from torchtally.plan.questions.words import run_text, subject_text
from torchtally.plan.questions.workload import plain_layout, with_shape, workload_of
from torchtally.plan.recipes import RECIPES
from torchtally.plan.training import mfu
from torchtally.programs.compiled import COMPILED_LAYERS, FUSED_BLOCKS, Regions
from torchtally.table import Column, Table
from torchtally.timing.constants import SURE_SHARE
from torchtally.timing.roofline.attention import Fused
from torchtally.units import Unit

if TYPE_CHECKING:
    from torchtally.plan.questions.written_fit import WrittenStep

FSDP = (
    "FSDP over all chips: parameters, gradients and optimizer state are sharded (--search tries "
    "other layouts)."
)


SMALLEST_PART = 1e-6
"""Share of a step below which a part is not listed: what a host adds behind kernels that take far
longer is nanoseconds by its formula, and no host's time is known so well."""

FULL_MEMORY = (
    "All memory of a chip is usable: fragmentation takes some, so leave room (--memory 72GiB). "
    f"Above {SURE_SHARE:.0%} of it, what fits is called close."
)

NO_PROGRAM = (
    "By closed forms: no step of this model's class is shipped for these options and chips "
    "(-o FILE records one, where PyTorch alone runs it)."
)

PREDICTION = (
    "Predicted steps are typical ones: by constants fitted to some published trainings and "
    "tested on others (docs/trainings.md). Best: kernels at their best published rates. Slow: "
    "nine in ten published trainings took no longer."
)


def range_in_words(step: Step) -> tuple[Part, ...]:
    """Range behind a typical step's seconds: " (best 1.0 s, slow 1.8 s)"."""
    if step.slow.value == step.seconds.value:
        return ()
    return (" (best ", step.best, ", slow ", step.slow, ")")


@uses(MODEL, STEP)
def fit(request: Request) -> Answer:
    """Memory of the fullest chip by category, and the predicted step."""
    request = with_shape(request)
    workload, assumptions = workload_of(request)
    layout = plain_layout(request, workload)
    step = step_of(workload, layout)
    capacity = capacity_of(request)
    written = step_as_written(request, workload, layout)
    if written is not None:
        return fit_as_written(request, workload, step, written, assumptions)
    return Answer(
        question="fit",
        headline=_headline(request, step, capacity),
        figures=(
            step.memory.total,
            capacity,
            step.seconds.with_name("step"),
            step.tokens_per_s,
            step.mfu,
            *((step.hfu,) if step.hfu.value != step.mfu.value else ()),
        ),
        tables=(memory_table(step.memory), time_table(step, workload)),
        assumptions=(
            *assumptions,
            *((NO_PROGRAM,) if is_class_alone(request, layout) else ()),
            batch_in_words(layout),
            *run_in_words(layout),
            *loss_in_words(request),
            kernel_in_words(layout, workload),
            *pace_in_words(workload),
            *overlap_in_words(step),
            *convention_in_words(step, request),
            FULL_MEMORY,
        ),
    )


REGIONS: dict[tuple[Implementation, Host], Regions | None] = {
    (Implementation.EAGER, Host.EAGER): None,
    (Implementation.EAGER, Host.COMPILED): COMPILED_LAYERS,
    (Implementation.FUSED, Host.EAGER): FUSED_BLOCKS,
}
"""Of what kernels are made where the step is written out; None: operators run one by one."""


def is_class_alone(request: Request, layout: Layout) -> bool:
    """One chip runs the model's class as it is, or chips share its weights by FSDP2: a program may
    have its step.
    """
    how = layout.implementation, request.host
    is_spread_alone = layout.chips == 1 or (layout.is_fully_sharded and REGIONS.get(how) is None)
    return (
        request.is_written
        and is_spread_alone
        and request.lora is None
        and not (layout.modules or layout.offloaded)
        and layout.micro_batches == 1
        and request.kernel is None
        and request.fused is None
        and (request.loss is None or (request.loss is Loss.FLOAT32 and REGIONS.get(how) is None))
        and not has_own_overlap(request)
        and request.recipe == RECIPES[request.recipe.name]
        and request.pace == TYPICAL
        and how in REGIONS
        and layout.recompute in (Recompute.NONE, Recompute.FULL)
    )


def has_own_overlap(request: Request) -> bool:
    """Whether the user said how much overlaps: a written step has its streams instead."""
    if request.stack is None:
        return bool(request.overlap)
    return any(word.startswith("overlap.") for word in request.chosen)


def step_as_written(request: Request, workload: Workload, layout: Layout) -> "WrittenStep | None":
    """The step that a program writes; None where none is for it."""
    if not is_class_alone(request, layout):
        return None
    from torchtally.plan.questions.written_fit import written_step  # loads the ledger

    return written_step(request, workload, layout, REGIONS[layout.implementation, request.host])


def fit_as_written(
    request: Request,
    workload: Workload,
    step: Step,
    written: "WrittenStep",
    assumptions: tuple[str, ...],
) -> Answer:
    """The same by a step that a program wrote; `step`, by closed forms, has what is counted."""
    capacity = capacity_of(request)
    speed, used, done = rates_as_written(request, workload, step, written)
    return Answer(
        question="fit",
        headline=(
            f"{claim_of(written.memory, capacity)}: {subject_text(request)} takes ",
            written.memory, " of ", capacity,
            f" on {'each of ' if step.layout.chips > 1 else ''}", *run_text(request), ", ",
            written.seconds, " a step predicted",
        ),
        figures=(
            written.memory, capacity, written.seconds, speed, used,
            *((done,) if done.value != used.value else ()),
        ),
        tables=(written.memory_by_category, written.time_by_phase),
        assumptions=(
            *assumptions,
            batch_in_words(step.layout),
            *written_in_words(request, step.layout, written),
            *convention_in_words(step, request),
            FULL_MEMORY,
        ),
    )  # fmt: skip


def rates_as_written(
    request: Request, workload: Workload, step: Step, written: "WrittenStep"
) -> tuple[Quantity, Quantity, Quantity]:
    """Tokens a second of a written step, its MFU and its HFU."""
    speed = tokens_in_time(step.tokens, written.seconds)
    peak = request.chip.peak_flop_per_s(request.recipe.products)
    flops = token_flops(
        workload.model, workload.sequence, attention=step.attention, recompute=step.layout.recompute
    )
    chips = step.layout.chips
    used = mfu(speed, flops.model, chips, peak).with_name(step.mfu.name)
    return speed, used, mfu(speed, flops.hardware, chips, peak).with_name(step.hfu.name)


def written_in_words(request: Request, layout: Layout, written: "WrittenStep") -> tuple[str, ...]:
    """What a written step is of, in sentences."""
    return (
        FSDP if layout.chips > 1 else "",
        *(() if request.host is Host.COMPILED else (implementation_in_words(layout),)),
        f"Written out operator by operator, {written.source}; with -o FILE it is a trace.",
        "Memory: as the allocator hands it out; seconds: as those of a run.",
    )


def overlap_in_words(step: Step) -> tuple[str, ...]:
    """The assumed overlap of communication with compute, in one sentence."""
    return (f"Assumed overlap with compute: {', '.join(step.assumptions)}.",)


def convention_in_words(step: Step, request: Request) -> tuple[str, ...]:
    """How MFU counts attention, where not as was asked."""
    if step.attention is request.convention:
        return ()
    return (
        f"MFU: {step.attention.description}. In full, with what the mask leaves out, it would be "
        "more than the chips can do.",
    )


def capacity_of(request: Request) -> Quantity:
    """Memory of one chip."""
    chip = request.chip
    return Quantity(
        f"memory of one {chip.name}",
        chip.total_memory_bytes,
        Unit.BYTES,
        source=chip.source_of("memory_bytes"),
    )


def batch_in_words(layout: Layout) -> str:
    """Micro-batches of a step."""
    times = f", {layout.micro_batches} per step" if layout.micro_batches > 1 else ""
    return f"Micro-batches of {layout.micro_batch}{times} (--micro-batch, --batch)."


def run_in_words(layout: Layout) -> tuple[str, str]:
    """How a plain layout shares states, and which kernels are assumed."""
    return FSDP if layout.chips > 1 else "", implementation_in_words(layout)


def loss_in_words(request: Request) -> tuple[str, ...]:
    """How the loss is computed, where it is not as the implementation has it."""
    return () if request.loss is None else (f"Loss: {LOSSES[request.loss]} (--loss).",)


LOSSES = {
    Loss.FLOAT32: "PyTorch's operators on a copy of the logits in float32",
    Loss.PLAIN: "PyTorch's operators in the logits' dtype",
    Loss.PARALLEL: "Megatron-LM's, which keeps a softmax in float32",
    Loss.FUSED: "one kernel, which keeps the logits in their dtype",
    Loss.COMPOSER: "one kernel, and Composer's metrics by PyTorch's operators",
    Loss.CHUNKED: "with the head's product, chunk by chunk",
}


def implementation_in_words(layout: Layout) -> str:
    """Which kernels are assumed."""
    how = "fused kernels as in Megatron-LM (--kernels eager: as in transformers)"
    if layout.implementation is Implementation.EAGER:
        how = "transformers' operators one by one (--kernels fused: as in Megatron-LM)"
    return f"Norms, activations and the loss: {how}."


def kernel_in_words(layout: Layout, workload: Workload) -> str:
    """Attention's kernel."""
    if layout.kernel is AttentionKernel.FLASH:
        names = dict.fromkeys(FUSED_WORDS[fused] for fused in fused_kernels(layout, workload))
        if not names:
            return "No layer has attention."
        return f"Attention's kernel: {' and '.join(names)} (--attention)."
    return "Attention keeps its scores: PyTorch has no fused kernel for it (--attention flash)."


FUSED_WORDS = {
    Fused.CUDNN: "cuDNN's",
    Fused.FLASH: "FlashAttention-2",
    Fused.FLASH_1: "the first FlashAttention",
    Fused.FLASH_3: "FlashAttention-3",
    Fused.EFFICIENT: "the memory-efficient one",
}


def pace_in_words(workload: Workload) -> tuple[str, ...]:
    """What is assumed of kernels, hosts and the network, and how far it may be off."""
    words = workload.pace.in_words(workload.cluster.chip, workload.host)
    return (words,) if workload.pace is BEST else (words, PREDICTION)


def claim_of(memory: Quantity, capacity: Quantity) -> str:
    """Whether it fits, in a word or three."""
    share = memory.value / capacity.value
    return "fits" if share <= SURE_SHARE else "close" if share <= 1 else "does not fit"


def _headline(request: Request, step: Step, capacity: Quantity) -> tuple[Part, ...]:
    claim = claim_of(step.memory.total, capacity)
    each = "each of " if request.of_cluster.count > 1 else ""
    return (
        f"{claim}: {subject_text(request)} takes ",
        step.memory.total,
        " of ",
        capacity,
        f" on {each}",
        *run_text(request),
        ", ",
        step.seconds,
        " a step predicted",
        *range_in_words(step),
    )


def memory_table(memory: ChipMemory) -> Table:
    """What the fullest chip holds, by category, largest first."""
    parts = ((name, held, held.note) for name, held in _categories(memory))
    title = "Memory of the fullest chip, by category"
    return memory_by_category(title, parts, memory.total.value)


def _categories(memory: ChipMemory) -> Iterator[tuple[str, Quantity]]:
    states = memory.states
    yield "parameters", states.parameters
    yield "gradients", states.gradients
    yield "copies of gradients", states.gradient_copies
    yield "master weights", states.master
    yield "optimizer state", states.optimizer
    yield "gathered layers", states.gathered
    yield "casts of weights", states.casts
    yield "activations", memory.activations
    yield "logits and loss", memory.logits
    yield "context and buffers", memory.outside


def time_table(step: Step, workload: Workload) -> Table:
    """Table of the step's time, and of what a chip sends meanwhile."""
    parts, whole = step.parts, step.parts.total.value
    sent = {name: quantity.value for name, quantity in sent_bytes(workload, step.layout).items()}
    words = {degree.name: degree.words.replace("-", " ") for degree in DEGREES}
    # Of the bubble, which other stages' collectives fill, none is its own.
    ways = {name: collectives(parts.seconds[name]) for name in words}
    network_columns = (
        Column("sent_bytes", "sent", Unit.BYTES),
        Column("collectives", "collectives", Unit.TEXT, rank=1),
    )
    has_network = any(sent.values())
    rows = sorted(parts.seconds.items(), key=lambda item: -item[1].value)
    return Table(
        title=f"Time of a step, bound by {step.bound}",
        columns=(
            Column("part", "part", Unit.NAME),
            Column("seconds", "time", Unit.SECONDS),
            Column("seconds_share", "share", Unit.FRACTION),
            *(network_columns if has_network else ()),
        ),
        rows=tuple(
            (
                words.get(name, name),
                quantity.value,
                quantity.value / whole if whole else 0.0,
                *((sent.get(name), ways.get(name, "")) if has_network else ()),
            )
            for name, quantity in rows
            if quantity.value > SMALLEST_PART * whole or sent.get(name)
        ),
        totals=(None, whole, 1.0, *((sum(sent.values()), None) if has_network else ())),
        note="Of communication, what does not overlap with compute."
        + " Sent: by one chip of the last stage, at least." * has_network,
    )


def collectives(seconds: Quantity) -> str:
    """What is sent in this time, and NCCL's way of doing so: "all-reduce NVLS, send LL"."""
    sent = [step for step in seconds.working() if step.source == NCCL]
    return ", ".join(dict.fromkeys(f"{step.name} {step.note}".strip() for step in sent))
