"""Names of models, chips and bounds in answers."""

from torchtally.chips import Cluster
from torchtally.plan.architecture.shapes import ASSUMED
from torchtally.plan.parallel.degrees import DEGREES
from torchtally.plan.quantity import of
from torchtally.plan.questions.answer import Part
from torchtally.plan.questions.request import Request
from torchtally.units import Unit, format_count


def subject_text(request: Request) -> str:
    """The model: "llama-3-70b (70.55 B parameters)". Of a guess, what was guessed."""
    subject = request.of_subject
    size = f"{format_count(int(subject.parameters.value))} parameters"
    model = subject.model
    if model is not None and model.name == ASSUMED:
        return f"{size} in an assumed shape ({model.layers} layers of width {model.width})"
    return f"{subject.name} ({size})" if subject.name else size


def trained_text(request: Request) -> str:
    """The model, and the adapters that are trained in its place."""
    adapters = "" if request.lora is None else f" with adapters of rank {request.lora}"
    return f"{subject_text(request)}{adapters}"


def run_text(request: Request) -> tuple[Part, ...]:
    """Text like "1,024 H100-SXM", and the software that runs there: "by torchtitan"."""
    by = "" if request.stack is None else f" by {request.stack.name}"
    return *chips_text(request.of_cluster), by


UNKNOWN_STACK = (
    "No software is named (--stack): fused kernels, an eager host and tensor parallelism that "
    "overlaps with nothing, of 54 combinations the nearest to published trainings (half A of seven "
    "tables: 14 % off in the mean of their medians; with their own stack 7 %)."
)
"""Where a layout is priced without a stack, by docs/trainings.md."""
UNKNOWN_TUNER = (
    "No software is named (--stack): PEFT's adapters within transformers' operators, an eager host "
    "and tensor parallelism that overlaps with nothing."
)
"""The same of adapters, which no published training of docs/trainings.md has."""


def stack_in_words(request: Request) -> tuple[str, ...]:
    """That no software is named, and what is assumed then; of one that is named, the first of an
    answer's assumptions says all.
    """
    if request.stack is not None:
        return ()
    return (UNKNOWN_STACK if request.lora is None else UNKNOWN_TUNER,)


def chips_text(cluster: Cluster) -> tuple[Part, ...]:
    """Text like "1,024 H100-SXM"."""
    return of(cluster.count, Unit.CHIPS).with_name("chips"), f" {cluster.chip.name}"


BOUNDS = {
    "memory bandwidth": "memory",
    "pipeline bubble": "bubble",
    **{degree.network: f"{degree.short} network" for degree in DEGREES},
}
"""What bounds a step, as short as a column of a table."""


def bound_in_short(bound: str) -> str:
    """Bound like "dp network"; "compute" and "optimizer" stay as they are."""
    return BOUNDS.get(bound, bound)
