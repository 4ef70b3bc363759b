"""A request as a workload for layouts: the model's shape, the chips, and the micro-batches."""

from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.shapes import scale_to
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.frozen import Frozen
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.overlap import overlap_of
from torchtally.plan.parallel.step import Workload
from torchtally.plan.questions.adapted import activation_recipe, plan_of
from torchtally.plan.questions.limits import check_positions, check_recipe
from torchtally.plan.questions.request import USUAL_SEQUENCE, Request, sequence_of

USUAL_VOCABULARY = 128_256
"""Llama 3's: of an assumed shape, where only a parameter count is known."""


def shape_of(request: Request) -> tuple[Model, tuple[str, ...]]:
    """The model's shape, and the assumptions where only its size is known."""
    subject = request.of_subject
    if subject.model is not None:
        return subject.model, subject.model.notes
    if subject.counted is not None:
        raise UsageError(
            f"This needs the shape of the model's layers, which {subject.name} lacks: give "
            "--layers, --width, --heads and --vocabulary of a similar decoder, or ask without "
            "(--tokens, --mfu)."
        )
    model = scale_to(int(subject.parameters.value), vocabulary=USUAL_VOCABULARY)
    return model, (
        *model.notes,
        f"Assumed vocabulary: {USUAL_VOCABULARY}. A name (llama-3-70b), a config.json or --layers, "
        "--width, --heads and --vocabulary replace the assumed shape.",
    )


def with_shape(request: Request, *, is_trained: bool = True) -> Request:
    """The same request; of a model of which only the size is known, with an assumed shape, and
    sequences to train on, which the model's notes say.
    """
    subject = request.of_subject
    if subject.model is not None or subject.counted is not None:
        return request
    model, notes = shape_of(request)
    sequence = request.sequence
    if is_trained and sequence is None:
        sequence = USUAL_SEQUENCE
        notes += (usual_sequence_in_words(),)
    known = replace(subject, model=replace(model, notes=notes))
    return replace(request, subject=known, sequence=sequence)


def usual_sequence_in_words() -> str:
    """Text that says how long sequences are where neither model nor user does."""
    return f"Sequences of {USUAL_SEQUENCE} tokens, usual in pre-training (--sequence)."


def workload_of(request: Request) -> tuple[Workload, tuple[str, ...]]:
    """What is trained on which chips, and the assumptions."""
    model, assumptions = shape_of(request)
    sequence, assumption = sequence_of(request)
    if sequence is None:
        sequence = USUAL_SEQUENCE
        assumption = usual_sequence_in_words()
    check_positions(model, sequence)
    check_recipe(request.recipe, request.chip)
    frozen, how = None, request.recipe
    if request.lora is not None:
        tuned = plan_of(request)
        frozen, how = Frozen(tuned.adapter, tuned.base), activation_recipe(tuned)
        frozen.check(model)
    workload = Workload(
        frozen=frozen,
        model=model,
        cluster=request.of_cluster,
        sequence=sequence,
        recipe=how,
        optimizer=request.optimizer,
        overlap=overlap_of(**(request.overlap or {})),
        attention=request.convention,
        pace=request.pace,
        host=request.host,
        fused=request.fused,
        loss=request.loss,
    )
    return workload, tuple(text for text in (*assumptions, assumption) if text)


def plain_layout(request: Request, workload: Workload, micro_batch: int | None = None) -> Layout:
    """One chip, or FSDP over all of them: what a script without a layout of its own does.

    Raises UsageError where the batch does not divide.
    """
    chips = request.of_cluster.count
    how = request.implementation or Implementation.EAGER
    usual = usual_kernel(workload.model, request.recipe, workload.sequence, how)
    size = micro_batch or request.micro_batch or 1
    batch = request.global_batch or chips * size
    if batch % (chips * size):
        raise UsageError(
            f"--batch {batch} does not divide into micro-batches of {size} on each of {chips} "
            f"chips: give a multiple of {chips * size}, or --search layouts with fewer replicas."
        )
    return Layout(
        data=chips,
        shard=Sharding.ZERO3 if chips > 1 else Sharding.NONE,
        micro_batch=size,
        micro_batches=batch // (chips * size),
        recompute=request.recompute or Recompute.NONE,
        kernel=request.kernel or usual,
        implementation=how,
    )
