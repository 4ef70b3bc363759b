"""Does fine-tuning with low-rank adapters fit, and what does it compute?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from torchtally.chips.dtypes import DTYPE_BYTES
from torchtally.errors import UsageError
from torchtally.memory.workspace import context_bytes
from torchtally.plan.activations.kept import (
    embedding_activation_bytes,
    head_activation_bytes,
    layers_activation_bytes,
    loss_bytes,
    working_activation_bytes,
)
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.setting import Implementation, setting_of
from torchtally.plan.adapters import (
    FLOAT32_BYTES,
    MERGED,
    AdaptedFlops,
    adapted_flops,
    adapter_weights,
    matrices_of,
)
from torchtally.plan.capacity import largest
from torchtally.plan.closed_form import (
    Bytes,
    Count,
    Flops,
    FlopsPerToken,
    ParameterCount,
    Tokens,
    closed_form,
)
from torchtally.plan.flops import Recompute, token_flops
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.weights import model_bytes
from torchtally.plan.memory import States, states
from torchtally.plan.parallel.chip_memory import outside_bytes
from torchtally.plan.quantity import Quantity, of, total
from torchtally.plan.questions.adapted import FineTuning, activation_recipe, plan_of
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.bill import bill, unknown_costs
from torchtally.plan.questions.fit import capacity_of
from torchtally.plan.questions.limits import check_positions, check_recipe, most_tokens
from torchtally.plan.questions.plan_options import ADAPTED, MODEL, TUNING
from torchtally.plan.questions.request import Request, peak_flop_per_s, sequence_of
from torchtally.plan.questions.shares import memory_by_category
from torchtally.plan.questions.uses import Fields, uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.recipes import Recipe, recipe
from torchtally.plan.training import training_flops_of, training_s
from torchtally.table import Column, Table
from torchtally.timing.constants import SURE_SHARE
from torchtally.units import Unit

MOST_SEQUENCES, MOST_TOKENS = 1 << 20, 1 << 26


@dataclass(frozen=True, slots=True)
class FineTuningMemory:
    """What is on each chip at the fullest moment; adapters are trained on each alike."""

    base: Quantity
    adapters: States
    activations: Quantity
    logits: Quantity
    at_work: Quantity
    outside: Quantity
    total: Quantity

    @property
    def rows(self) -> tuple[tuple[str, Quantity, str], ...]:
        return (
            ("frozen weights", self.base, self.base.note),
            ("adapters", self.adapters.parameters, ""),
            ("gradients of adapters", self.adapters.gradients, ""),
            ("optimizer state", self.adapters.optimizer, ""),
            ("activations", self.activations, ""),
            ("logits and loss", self.logits, "or one recomputed layer"),
            ("a matrix at work", self.at_work, "dequantised, or merged (DoRA): the largest"),
            ("context and buffers", self.outside, self.outside.note),
        )


def _used(request: Request) -> Fields:
    used = ADAPTED | {"weights", "recipe", "optimizer", "sequence", "convention", "recompute"}
    if request.cluster is None:
        return used
    used |= TUNING | {"micro_batch"}
    if request.tokens is not None and request.mfu is not None:
        used |= {"tokens", "mfu", "usd_per_hour", "peak_flop_per_s"}
    return used


@uses(MODEL, _used)
def fine_tuning(request: Request) -> Answer:
    """Memory of a chip by category, trained parameters, and the FLOPs of a token."""
    plan = plan_of(request)
    length, assumption = sequence_of(request)
    if length is None:
        raise UsageError("Missing sequence length: give --sequence 2048.")
    flops = flops_of(plan, length)
    trained = trained_parameters(plan)
    figures = (
        trained,
        share_of_model(trained, request.of_subject.parameters),
        flops.total,
        share_of_full(flops.total, token_flops(plan.model, length).model),
    )
    check_positions(plan.model, length)
    if request.cluster is None:
        return _without_chips(plan, figures, assumption)
    check_recipe(request.recipe, request.chip)
    batch = request.micro_batch or 1
    memory, capacity = memory_of(plan, batch, length), capacity_of(request)
    claim = claim_of(memory, capacity)
    each = "each of " if request.of_cluster.count > 1 else ""
    return Answer(
        question="fine-tuning",
        headline=(
            f"{claim}: {subject_text(request)} with adapters of rank {plan.adapter.rank} takes ",
            memory.total,
            " of ",
            capacity,
            f" on {each}",
            *chips_text(request.of_cluster),
        ),
        figures=(
            memory.total,
            capacity,
            *figures,
            *((flops.each_pass,) if flops.each_pass.value else ()),
            *_time(request, flops, batch * length),
        ),
        tables=(memory_table(memory), other_ways(plan, batch, length, capacity)),
        assumptions=(*in_words(plan, assumption), f"Micro-batches of {batch} (--micro-batch)."),
        unknown=("the step's time: `tally run` predicts that of a script",)
        + (unknown_costs(request, request.chip) if request.tokens is not None else ()),
    )


@uses(MODEL, TUNING, "sequence", "largest")
def largest_tuned_batch(request: Request) -> Answer:
    """The most sequences that fit a chip at once."""
    return _largest(request, is_batch=True)


@uses(MODEL, TUNING, "micro_batch", "largest")
def largest_tuned_sequence(request: Request) -> Answer:
    """The longest sequence that fits a chip."""
    return _largest(request, is_batch=False)


def _largest(request: Request, *, is_batch: bool) -> Answer:
    plan, capacity = plan_of(request), capacity_of(request)
    check_recipe(request.recipe, request.chip)
    length, assumption = sequence_of(request)
    if is_batch and length is None:
        raise UsageError("Missing sequence length: give --sequence 2048.")
    fixed = request.micro_batch or 1

    def memory_for(count: int) -> FineTuningMemory:
        return memory_of(plan, count, length or 1) if is_batch else memory_of(plan, fixed, count)

    most = MOST_SEQUENCES if is_batch else most_tokens(plan.model, MOST_TOKENS)
    count = largest(lambda count: memory_for(count).total.value <= capacity.value, most=most)
    if not count:
        least = memory_for(1).total.value / (1 << 30)
        raise UsageError(
            f"Nothing fits: one {'sequence' if is_batch else 'token'} needs {least:.1f} GiB.\n"
            "Frozen weights in 4 bits take a quarter: --weights nf4; --recompute full keeps less."
        )
    unit, name = (
        (Unit.COUNT, "largest micro-batch") if is_batch else (Unit.TOKENS, "longest sequence")
    )
    answer, memory = of(count, unit).with_name(name), memory_for(count)
    what = f" sequences of {length} tokens fit " if is_batch else " tokens in a sequence fit "
    return Answer(
        question=f"largest-{'batch' if is_batch else 'sequence'}",
        headline=(
            answer,
            f"{what}each of ",
            *chips_text(request.of_cluster),
            f" with {subject_text(request)} and adapters of rank {plan.adapter.rank}",
        ),
        figures=(answer, memory.total, capacity),
        tables=(memory_table(memory),),
        assumptions=in_words(plan, assumption if is_batch else ""),
    )


def memory_of(plan: FineTuning, batch: int, sequence: int) -> FineTuningMemory:
    """Memory of one chip with micro-batches of so many sequences."""
    request, model = plan.request, plan.model
    how = activation_recipe(plan)
    kernel = request.kernel or usual_kernel(model, how, sequence, Implementation.EAGER)
    at = setting_of(
        model, batch, sequence, how, adapter=plan.adapter, kernel=kernel, loss=request.loss,
        recompute=request.recompute or Recompute.NONE,
    )  # fmt: skip
    layers = {
        f"layers_{n}": layers_activation_bytes(at, kind) for n, kind in enumerate(model.kinds)
    }
    kept = total("activations", Unit.BYTES, {"embedding": embedding_activation_bytes(at), **layers})
    last = at_the_end(head_activation_bytes(at), loss_bytes(at), working_activation_bytes(at))
    adapters = states(adapter_weights(model, plan.adapter), recipe("fp32"), request.optimizer)
    base = model_bytes(model, plan.base).with_name("frozen weights")
    widest = max(
        (weight.elements // weight.count for weight in matrices_of(model, *model.kinds)), default=0
    )
    work = of(widest * _bytes_at_work(plan, how), Unit.BYTES).with_name("matrix at work")
    chip = request.chip
    context = context_bytes(chip)
    outside = outside_bytes(context, int(request.of_cluster.count > 1))
    whole = total(
        "memory",
        Unit.BYTES,
        {"frozen_weights": base, "adapters": adapters.total, "activations": kept, "logits": last,
         "matrix_at_work": work, "context_and_buffers": outside},
    )  # fmt: skip
    return FineTuningMemory(base, adapters, kept, last, work, outside, whole)


def _bytes_at_work(plan: FineTuning, how: Recipe) -> int:
    """Bytes of a matrix' weight, while it is multiplied: dequantised, and of DoRA in float32 as it
    is, B and A multiplied out, that scaled, and their sum.
    """
    if plan.adapter.has_magnitude:
        return 4 * FLOAT32_BYTES
    is_dequantised = not plan.base.is_plain and not how.is_quantised
    return DTYPE_BYTES[how.weights] if is_dequantised else 0


@closed_form("logits, or one layer recomputed", Unit.BYTES)
def at_the_end(logits: Bytes, gradient: Bytes, recomputed: Bytes) -> str:
    """What is there besides, when the backward pass begins or while a layer runs again."""
    return "max(logits + gradient, recomputed)"


def flops_of(plan: FineTuning, sequence: int) -> AdaptedFlops:
    is_recomputed = plan.request.recompute is Recompute.FULL
    return adapted_flops(
        plan.model, plan.adapter, sequence, plan.request.convention, is_recomputed=is_recomputed
    )


def trained_parameters(plan: FineTuning) -> Quantity:
    count = sum(weight.elements for weight in adapter_weights(plan.model, plan.adapter))
    return of(count, Unit.PARAMETERS).with_name("trained parameters")


@closed_form("of the model", Unit.FRACTION)
def share_of_model(trained: ParameterCount, parameters: ParameterCount) -> str:
    """Trained parameters beside those of the model."""
    return "trained / parameters"


def share_of_full(flops: Quantity, full: Quantity) -> Quantity:
    """FLOPs of a token beside those of training all weights."""
    return _share(flops.value, full.value)


@closed_form("of a full training's FLOPs", Unit.FRACTION)
def _share(adapted: Count, full: Count) -> str:
    return "adapted / full"


def claim_of(memory: FineTuningMemory, capacity: Quantity) -> str:
    """Claim as of any plan: close above a share of the memory that trainings were seen to reach."""
    if memory.total.value > capacity.value:
        return "does not fit"
    return "fits" if memory.total.value <= SURE_SHARE * capacity.value else "close"


def memory_table(memory: FineTuningMemory) -> Table:
    title = "Memory of a chip, by category"
    return memory_by_category(title, memory.rows, memory.total.value)


def other_ways(plan: FineTuning, batch: int, sequence: int, capacity: Quantity) -> Table:
    """The same with weights in 16 and in 4 bits, layers recomputed or not, or without adapters."""
    rows = []
    for base in dict.fromkeys((plan.base.name, "bf16", "nf4")):
        for recompute in (Recompute.NONE, Recompute.FULL):
            request = replace(plan.request, recompute=recompute)
            other = replace(plan, base=weight_format(base), request=request)
            memory = memory_of(other, batch, sequence)
            rows.append((base, str(recompute), memory.total.value, claim_of(memory, capacity)))
    return Table(
        title="Alternatives",
        columns=(
            Column("weight_format", "--weights", Unit.NAME),
            Column("recompute", "--recompute", Unit.WORD),
            Column("bytes", "memory", Unit.BYTES),
            Column("claim", "", Unit.WORD),
        ),
        rows=tuple(rows),
    )


def in_words(plan: FineTuning, assumption: str) -> tuple[str, ...]:
    """How it is trained, and which option changes each."""
    adapter = plan.adapter
    beside = ", ".join(sorted(adapter.targets))
    experts = adapter.targets_among(MERGED)
    return (
        assumption,
        f"Adapters in float32 beside {beside} of every layer (--lora-targets), as PEFT keeps "
        f"them{f', dropout {adapter.dropout:g}' if adapter.dropout else ''}."
        + " Each output has a trained magnitude (--dora)." * adapter.has_magnitude
        + " Adapters of experts are added to the weights in each pass." * bool(experts),
        f"Frozen weights: {plan.base.summary} (--weights).",
        "Activations: transformers' operators one by one, without torch.compile"
        + (
            "; full activation recomputation (--recompute)."
            if plan.request.recompute is Recompute.FULL
            else " (--recompute full keeps less)."
        ),
    )


@closed_form("FLOPs per token", Unit.FLOPS_PER_TOKEN)
def with_merging(adapted: FlopsPerToken, each_pass: Flops, pass_tokens: Tokens) -> str:
    """Text with what is done once for all tokens of a pass."""
    return "adapted + each_pass / pass_tokens"


def _time(request: Request, flops: AdaptedFlops, pass_tokens: int) -> tuple[Quantity, ...]:
    """Time and cost, with --tokens and --mfu."""
    if request.tokens is None or request.mfu is None:
        return ()
    each = flops.total
    if flops.each_pass.value:
        each = with_merging(flops.total, flops.each_pass, pass_tokens)
    needed = training_flops_of(each, request.of_tokens)
    peak = peak_flop_per_s(request, request.chip)
    seconds = training_s(needed, request.of_chips, peak, request.of_mfu)
    return (seconds, needed, *bill(request, request.of_chips, seconds, request.chip))


def _without_chips(plan: FineTuning, figures: tuple[Quantity, ...], assumption: str) -> Answer:
    request = plan.request
    adapters = states(adapter_weights(plan.model, plan.adapter), recipe("fp32"), request.optimizer)
    base = model_bytes(plan.model, plan.base).with_name("frozen weights")
    parts = {"frozen_weights": base, "adapters": adapters.total}
    held = total("held", Unit.BYTES, parts, note="from step to step")
    return Answer(
        question="fine-tuning",
        headline=(
            f"{subject_text(request)} with adapters of rank {plan.adapter.rank}: ",
            figures[0],
            " trained parameters, ",
            held,
            " before activations",
        ),
        figures=(held, base, adapters.total, *figures),
        assumptions=in_words(plan, assumption),
        unknown=("activations: they depend on the batch (--gpus CHIP --micro-batch 1)",),
    )


TUNED: Mapping[str | None, Callable[[Request], Answer]] = {
    None: fine_tuning,
    "batch": largest_tuned_batch,
    "sequence": largest_tuned_sequence,
}
"""By --largest."""
