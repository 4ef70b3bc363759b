"""Questions about a model that was counted in its own class: a sample's cost, and does it fit?"""

from collections.abc import Iterator

from torchtally.errors import UsageError
from torchtally.memory.workspace import context_bytes
from torchtally.plan.closed_form import BytePerS, Bytes, Count, Flops, Tokens, closed_form
from torchtally.plan.counted import CountedModel, CountedStep
from torchtally.plan.memory import States, checkpoint_bytes
from torchtally.plan.quantity import Quantity, of, total, total_s
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.fit import FULL_MEMORY, capacity_of, claim_of
from torchtally.plan.questions.model_card import states_of
from torchtally.plan.questions.plan_options import IN_CLASS, MODEL
from torchtally.plan.questions.request import Request, peak_flop_per_s
from torchtally.plan.questions.shares import memory_by_category
from torchtally.plan.questions.uses import uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.training import mfu_of_step
from torchtally.table import Column, Table
from torchtally.timing.roofline.rates import bandwidth_bytes_per_s
from torchtally.units import Unit

ROOFLINE = "timing/roofline"


@uses(MODEL, IN_CLASS, "optimizer")
def counted_card(request: Request) -> Answer:
    """Parameters, FLOPs and activations of one sample by part, and states."""
    subject, step = request.of_subject, step_of(request)
    state = states_of(request)
    sample = sample_flops(step)
    return Answer(
        question="model",
        headline=(
            f"{subject_text(request)}: ",
            state.total,
            f" to train with {request.optimizer.name} ({request.recipe.name}) before activations, ",
            sample,
            " a sample",
        ),
        figures=(
            subject.parameters,
            *((subject.active,) if subject.active.value != subject.parameters.value else ()),
            sample,
            *((flops_of_token(step),) if step.tokens else ()),
            saved_by_step_bytes(step),
            working_bytes(step),
            state.total,
            checkpoint_bytes(state),
        ),
        tables=(_parts(step),),
        assumptions=tuple(in_words(counted_model(request))),
        unknown=("memory and time of a step: --gpus H100-SXM --micro-batch 8",),
    )


@uses(MODEL, IN_CLASS, "optimizer", "memory_bytes", "peak_flop_per_s")
def counted_fit(request: Request) -> Answer:
    """Memory of one chip by category, and the predicted step."""
    step, chip = step_of(request), request.chip
    state = states_of(request)
    parts = {
        "states": state.total,
        "activations": working_bytes(step),
        "context": of(context_bytes(chip), Unit.BYTES, "CUDA context"),
    }
    memory = total("memory", Unit.BYTES, parts)
    capacity = capacity_of(request)
    seconds = step_seconds(request, state)
    flops = of(step.model_flops, Unit.FLOPS, "training FLOPs")
    return Answer(
        question="fit",
        headline=(
            f"{claim_of(memory, capacity)}: {subject_text(request)} takes ",
            memory,
            " of ",
            capacity,
            " on ",
            *chips_text(request.of_cluster),
            *(() if seconds is None else (", ", seconds, " a step predicted")),
        ),
        figures=(
            memory,
            capacity,
            flops,
            *(
                ()
                if seconds is None
                else (seconds, mfu_of_step(flops, seconds, peak_flop_per_s(request, chip)))
            ),
        ),
        tables=(_memory(parts, state), _parts(step)),
        assumptions=(
            *in_words(counted_model(request)),
            (
                "All gradients are counted on top of all activations of one micro-batch: an upper "
                "bound."
            ),
            "Time: kernels at their best rates, issued by Python; the optimizer's update as one "
            "fused kernel.",
            FULL_MEMORY,
        ),
        unknown=() if seconds is not None else (f"time: the speed of {chip.name} is unknown",),
    )


def counted_model(request: Request) -> CountedModel:
    """The model, which has a step."""
    counted = request.of_subject.counted
    assert counted is not None
    assert counted.step is not None
    return counted


def step_of(request: Request) -> CountedStep:
    """Raises UsageError for several chips."""
    counted = counted_model(request)
    assert counted.step is not None
    if request.cluster is not None and request.cluster.count > 1:
        raise UsageError(
            f"{counted.name} was counted on one chip, and has no closed form to price layouts of "
            f"several: give one, --gpus {request.chip.name}, or --tokens and --mfu."
        )
    return counted.step


def in_words(counted: CountedModel) -> Iterator[str]:
    """What was counted, and how."""
    step = counted.step
    assert step is not None
    yield (
        f"Counted, not by formula: {counted.library}' {counted.name} ran a training step on the "
        f"simulated GPU; every operator is counted. Called with {step.inputs}."
    )
    batch = f"micro-batch of {step.samples} (--micro-batch)"
    yield f"A sample: {step.sample} ({step.options}); {batch}."


def sample_flops(step: CountedStep) -> Quantity:
    """Model FLOPs of a training step for one sample."""
    return _flops_of_one(of(step.model_flops, Unit.FLOPS, "of the step"), step.samples)


def flops_of_token(step: CountedStep) -> Quantity:
    """Model FLOPs of a training step for one token of text: towers' and encoders' shared out."""
    return _flops_each(
        of(step.model_flops, Unit.FLOPS, "of the step"),
        of(step.samples * step.tokens, Unit.TOKENS, "tokens of the step"),
    )


@closed_form("training FLOPs of a sample", Unit.FLOPS, note="forward and backward")
def _flops_of_one(flops: Flops, samples: Count) -> str:
    return "flops / samples"


@closed_form("training FLOPs of a token", Unit.FLOPS_PER_TOKEN, note="forward and backward")
def _flops_each(flops: Flops, tokens: Tokens) -> str:
    return "flops / tokens"


def saved_by_step_bytes(step: CountedStep) -> Quantity:
    return of(step.bytes_saved, Unit.BYTES).with_name("activations saved")


def working_bytes(step: CountedStep) -> Quantity:
    return of(step.working_bytes, Unit.BYTES).with_name("activations and temporaries")


def step_seconds(request: Request, states: States) -> Quantity | None:
    """Forward, backward and the optimizer's update; None where the chip's speed is unknown."""
    step = step_of(request)
    if step.seconds is None:
        return None
    updated = states.master if states.master.value else states.parameters
    cast = states.parameters.value if states.master.value else 0
    update = update_s(
        states.optimizer, updated, states.gradients, cast, bandwidth_bytes_per_s(request.chip)
    )
    passes = of(step.seconds, Unit.SECONDS, "forward and backward")
    return total_s("step", passes=passes, optimizer=update)


@closed_form("optimizer", Unit.SECONDS, ROOFLINE, "each read and written once, gradients read")
def update_s(
    state: Bytes, updated: Bytes, gradients: Bytes, cast: Bytes, bandwidth_bytes_per_s: BytePerS
) -> str:
    """Seconds of an update that reads and writes everything once: one fused kernel."""
    return "(2 * state + 2 * updated + gradients + cast) / bandwidth_bytes_per_s"


def _memory(parts: dict[str, Quantity], states: States) -> Table:
    rows = {
        "parameters": states.parameters,
        "gradients": states.gradients,
        "master weights": states.master,
        "optimizer state": states.optimizer,
        "activations": parts["activations"],
        "CUDA context": parts["context"],
    }
    held_parts = ((name, held, held.note) for name, held in rows.items())
    whole = sum(held.value for held in rows.values())
    return memory_by_category("Memory of the chip, by category", held_parts, whole)


def _parts(step: CountedStep) -> Table:
    """Towers, encoders, decoders: what each costs."""
    totals = [
        sum(getattr(part, name) for part in step.parts)
        for name in ("parameters", "flops_forward", "bytes_saved")
    ]
    return Table(
        title=f"By part, of a micro-batch of {step.samples}",
        columns=(
            Column("part", "part", Unit.NAME),
            Column("parameters", "params", Unit.PARAMETERS),
            Column("flops_forward", "forward", Unit.FLOPS),
            Column("bytes_saved", "saved", Unit.BYTES),
            Column("class", "class", Unit.TEXT, rank=1),
        ),
        rows=tuple(
            (part.name, part.parameters, part.flops_forward, part.bytes_saved, part.class_name)
            for part in step.parts
        ),
        totals=(None, *totals, None),
        note="Forward: FLOPs of every operator. Saved: for the backward pass.",
    )
