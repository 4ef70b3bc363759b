"""A request as a workload for layouts: the model's shape, the chips, and how a step is cut up."""

from torchtally.errors import UsageError
from torchtally.plan.activations import Implementation, usual_kernel
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.shapes import scaled_to
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.step import Workload
from torchtally.plan.questions.request import Request, sequence_of

USUAL_VOCABULARY = 128_256
"""Llama 3's: of a made-up shape, where only a parameter count is known."""


def shape_of(request: Request) -> tuple[Model, tuple[str, ...]]:
    """The model's shape, and what is taken for granted where only its size is known."""
    subject = request.of_subject
    if subject.model is not None:
        return subject.model, subject.model.notes
    model = scaled_to(int(subject.parameters.value), vocabulary=USUAL_VOCABULARY)
    return model, (
        *model.notes,
        f"A vocabulary of {USUAL_VOCABULARY}. A name (llama-3-70b), a config.json or --layers, "
        "--width, --heads and --vocabulary say otherwise.",
    )


def workload_of(request: Request) -> tuple[Workload, tuple[str, ...]]:
    """What is trained on which chips, and what is taken for granted about it.

    Raises UsageError where nothing tells how long a sequence is.
    """
    model, assumptions = shape_of(request)
    sequence, assumption = sequence_of(request)
    if sequence is None:
        raise UsageError("How long are sequences? Say it: --sequence 4096.")
    workload = Workload(
        model=model,
        cluster=request.of_cluster,
        sequence=sequence,
        recipe=request.recipe,
        optimizer=request.optimizer,
        attention=request.attention,
    )
    return workload, tuple(text for text in (*assumptions, assumption) if text)


def plain_layout(request: Request, workload: Workload, micro_batch: int | None = None) -> Layout:
    """One chip by itself, or FSDP over all of them: what a script does without a layout of its own.

    Raises UsageError where the batch cannot be cut so.
    """
    chips = request.of_cluster.count
    how = request.implementation or Implementation.EAGER
    usual = usual_kernel(workload.model, request.recipe, workload.sequence, how)
    size = micro_batch or request.micro_batch or 1
    batch = request.global_batch or chips * size
    if batch % (chips * size):
        raise UsageError(
            f"--batch {batch} cannot be cut into micro-batches of {size} on each of {chips} chips: "
            f"give a multiple of {chips * size}, or --search for layouts with fewer replicas."
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
