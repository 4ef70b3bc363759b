"""What does a step of DPO or GRPO take: generating, the reference model, training?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torchtally.errors import UsageError
from torchtally.plan.adapters import Adapter
from torchtally.plan.closed_form import (
    BytesEach,
    Chips,
    ParameterCount,
    Seconds,
    Tokens,
    closed_form,
)
from torchtally.plan.inference.engines import ENGINES, Engine
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.forward import Generator, NewTokens
from torchtally.plan.inference.memory import buffers_of, held_cache, held_weights
from torchtally.plan.inference.placement import Placement
from torchtally.plan.inference.serving import Serving
from torchtally.plan.kv_cache import Cache, cache_format
from torchtally.plan.parallel.pricing import step as step_of
from torchtally.plan.preference import Answers, Method, PreferenceFlops, preference_flops
from torchtally.plan.quantity import Quantity, of, total, total_s
from torchtally.plan.questions.adapted import FineTuning, plan_of
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.fine_tuning import in_words as adapters_in_words
from torchtally.plan.questions.fine_tuning import memory_of
from torchtally.plan.questions.fit import capacity_of, pace_in_words, run_in_words
from torchtally.plan.questions.plan_options import MODEL, TUNING
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.uses import Fields, uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.questions.workload import plain_layout, workload_of
from torchtally.table import Column, Table
from torchtally.timing.constants import SURE_SHARE
from torchtally.units import Unit

USUAL_PROMPT, USUAL_OUTPUT = 512, 512
"""Tokens, where neither is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRequest:
    """What is asked of DPO and GRPO."""

    method: Method
    prompt: int
    output: int
    generations: int
    """Answers to each prompt, in GRPO."""
    has_reference: bool
    engine: Engine
    """Which generates."""


def preference_request(request: Request) -> PreferenceRequest:
    """DPO, or else GRPO, with the usual lengths where none are given."""
    return PreferenceRequest(
        method=Method.DPO if request.dpo else Method.GRPO,
        prompt=request.prompt or USUAL_PROMPT,
        output=request.generate or USUAL_OUTPUT,
        generations=request.generations,
        has_reference=request.dpo or request.reference,
        engine=request.engine or ENGINES["eager"],
    )


@dataclass(frozen=True, slots=True)
class StepPhase:
    """A part of a step on each chip. No seconds: unknown."""

    name: str
    flops: Quantity
    """Of all chips."""
    memory: Quantity
    """On the fullest chip meanwhile."""
    time: "Range | None"


@dataclass(frozen=True, slots=True)
class Range:
    """Seconds: predicted, with kernels at their best, and as of nine of ten that were published."""

    typical: Quantity
    best: Quantity
    slow: Quantity


@dataclass(frozen=True, slots=True)
class PreferenceStep:
    """One step: its phases, one after the other."""

    asked: PreferenceRequest
    answers: Answers
    """Of all chips."""
    phases: tuple[StepPhase, ...]
    flops: PreferenceFlops
    cache: Quantity | None
    """Keys and values of the answers that a chip generates."""
    assumptions: tuple[str, ...]

    @property
    def time(self) -> Range | None:
        """None where a phase's is unknown."""
        times = {phase.name: phase.time for phase in self.phases if phase.time is not None}
        if len(times) < len(self.phases):
            return None
        return Range(
            total_s("step", **{name: time.typical for name, time in times.items()}),
            total_s("best step", **{name: time.best for name, time in times.items()}),
            total_s("slow step", **{name: time.slow for name, time in times.items()}),
        )

    @property
    def memory(self) -> Quantity:
        return max((phase.memory for phase in self.phases), key=lambda memory: memory.value)


def _used(request: Request) -> Fields:
    used = {
        *("prompt", "generate", "engine", "micro_batch", "global_batch", "convention"),
        *("recipe", "optimizer", "recompute", "attention", "memory_bytes", "peak_flop_per_s"),
    }
    if request.grpo:
        used |= {"generations", "reference"}
    return used | (
        TUNING
        if request.lora is not None
        else {"host", "pace", "implementation", "loss", "overlap"}
    )


@uses(MODEL, _used)
def preference(request: Request) -> Answer:
    """Seconds, memory and FLOPs of each phase of a step."""
    step, capacity = preference_step(request), capacity_of(request)
    asked, time, memory = step.asked, step.time, step.memory.with_name("memory")
    claim = "does not fit" if memory.value > capacity.value else "close"
    if memory.value <= SURE_SHARE * capacity.value:
        claim = "fits"
    tokens = of(step.answers.sequences * step.answers.tokens, Unit.TOKENS)
    each = "each of " if request.of_cluster.count > 1 else ""
    return Answer(
        question="preference",
        headline=(
            f"{claim}: {subject_text(request)} by {asked.method.upper()} takes ",
            memory,
            " of ",
            capacity,
            f" on {each}",
            *chips_text(request.of_cluster),
            *(
                ()
                if time is None
                else (
                    ", ",
                    time.typical,
                    " a step predicted (best ",
                    time.best,
                    ", slow ",
                    time.slow,
                    ")",
                )
            ),
        ),
        figures=(
            memory,
            capacity,
            *(() if time is None else (time.typical,)),
            of(step.answers.sequences, Unit.COUNT).with_name("sequences of a step"),
            tokens.with_name("tokens of a step"),
            step.flops.total,
            *((step.cache,) if step.cache is not None else ()),
        ),
        tables=(phase_table(step),),
        assumptions=step.assumptions,
        unknown=("rewards, and the memory and time of a reward model",)
        * (asked.method is Method.GRPO)
        + ("the training's time: `tally run` predicts that of a script",) * (time is None),
    )


def preference_step(request: Request) -> PreferenceStep:
    """Raises UsageError where the batch does not divide among chips and groups."""
    asked = preference_request(request)
    chips, group = request.of_cluster.count, group_of(asked)
    micro_batch = request.micro_batch or group
    batch = request.global_batch or micro_batch * chips
    is_uneven = asked.method is Method.DPO and micro_batch % 2
    if batch % (micro_batch * chips) or batch % (group * chips) or is_uneven:
        what = "pairs" if asked.method is Method.DPO else f"groups of {group} (--generations)"
        raise UsageError(
            f"{batch} sequences (--batch) do not divide into {what} and into micro-batches of "
            f"{micro_batch} on each of {chips} chips."
        )
    answers = Answers(batch, asked.prompt, asked.output)
    request = replace(request, sequence=answers.tokens, micro_batch=micro_batch, global_batch=batch)
    learning = _adapters_learn(request) if request.lora is not None else _weights_learn(request)
    flops = preference_flops(
        request.of_model,
        answers,
        request.convention,
        generates=asked.method is Method.GRPO,
        has_reference=asked.has_reference,
        adapter=learning.adapter,
        passes=batch // micro_batch,
    )
    served = Serving(generator_of(request, learning), batch // chips, asked.prompt, asked.output)
    is_generated = asked.method is Method.GRPO
    return PreferenceStep(
        asked,
        answers,
        tuple(_phases(asked, served, flops, learning)),
        flops,
        cache_of(served) if is_generated else None,
        tuple(_in_words(asked, micro_batch, batch // chips, learning)),
    )


def _phases(
    asked: PreferenceRequest, served: Serving, flops: PreferenceFlops, learning: "Learning"
) -> Iterator[StepPhase]:
    generator, sequences = served.generator, served.sequences
    reference = learning.reference if asked.has_reference else of(0, Unit.BYTES)
    if asked.method is Method.GRPO:
        # FSDP's shards are gathered for it: every chip has all weights.
        gathered = of(0, Unit.BYTES) if learning.is_whole else held_weights(generator)
        memory = total(
            "memory while generating",
            Unit.BYTES,
            {"states": learning.states, "reference": reference, "gathered": gathered,
             "cache": cache_of(served), "buffers": buffers_of(generator, sequences, served.prompt),
             "outside": learning.outside},
        )  # fmt: skip
        yield StepPhase("generating", flops.generation, memory, _generating(served))
    memory = total(
        "memory while training", Unit.BYTES, {"training": learning.total, "reference": reference}
    )
    if asked.has_reference:
        yield StepPhase("reference", flops.reference, memory, _reference(served))
    yield StepPhase("training", flops.training, memory, learning.time)


def _generating(served: Serving) -> Range:
    seconds = generating(served)
    return Range(seconds, generating(served.best), served.slow(seconds))


def _reference(served: Serving) -> Range:
    new = NewTokens(served.sequences, served.context, served.context)
    seconds = served.generator.forward(new).total
    return Range(seconds, served.best.generator.forward(new).total, served.slow(seconds))


def generating(served: Serving) -> Quantity:
    """Seconds: all prompts at once, then a pass for each further token."""
    new = NewTokens(served.sequences, served.prompt, served.prompt)
    prompts = served.generator.forward(new).total
    return generating_s(prompts, served.output, served.decode.total)


@closed_form("generating", Unit.SECONDS)
def generating_s(prompts_s: Seconds, output: Tokens, token_s: Seconds) -> str:
    """`token_s` with half of the output written."""
    return "prompts_s + (output - 1) * token_s"


def cache_of(served: Serving) -> Quantity:
    """Keys and values of what a chip generates, at last."""
    return held_cache(served.generator, served.sequences, served.context).with_name("KV cache")


def group_of(asked: PreferenceRequest) -> int:
    """Sequences that belong together."""
    return 2 if asked.method is Method.DPO else asked.generations


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The training half of a step, on one chip."""

    is_whole: bool
    """Every chip holds all weights."""
    states: Quantity
    """Held from step to step."""
    reference: Quantity
    """A second model's weights."""
    outside: Quantity
    total: Quantity
    time: Range | None
    tuning: FineTuning | None = None
    assumptions: tuple[str, ...]

    @property
    def adapter(self) -> Adapter | None:
        return None if self.tuning is None else self.tuning.adapter


def _adapters_learn(request: Request) -> Learning:
    """The reference model is the same one, its adapters off."""
    plan = plan_of(request)
    memory = memory_of(plan, request.micro_batch or 1, request.sequence or 1)
    parts = {"weights": memory.base, "adapters": memory.adapters.total}
    return Learning(
        is_whole=True,
        states=total("states", Unit.BYTES, parts),
        reference=of(0, Unit.BYTES),
        outside=memory.outside,
        total=memory.total,
        time=None,
        tuning=plan,
        assumptions=adapters_in_words(plan, ""),
    )


def _weights_learn(request: Request) -> Learning:
    """FSDP over all chips; the reference model's weights are sharded like the model's."""
    workload, assumptions = workload_of(request)
    layout = plain_layout(request, workload)
    step = step_of(workload, layout)
    held, chips = step.memory.states, request.of_cluster.count
    parts = {"parameters": held.parameters, "master": held.master, "optimizer": held.optimizer}
    size = request.recipe.weight_bytes
    return Learning(
        is_whole=chips == 1,
        states=total("states", Unit.BYTES, parts),
        reference=reference_bytes(request.of_subject.parameters, size, chips),
        outside=step.memory.outside,
        total=step.memory.total,
        time=Range(step.seconds, step.best, step.slow),
        assumptions=(*assumptions, *run_in_words(layout), *pace_in_words(workload)),
    )


@closed_form("reference model", Unit.BYTES)
def reference_bytes(parameters: ParameterCount, itemsize: BytesEach, chips: Chips) -> str:
    """A chip's share of a second model's weights."""
    return "ceil(parameters * itemsize / chips)"


def generator_of(request: Request, learning: Learning) -> Generator:
    """Every chip generates answers of its own, with all of the model's weights."""
    asked, tuning = preference_request(request), learning.tuning
    plain = weight_format("fp32" if request.recipe.weights == "float32" else "bf16")
    cache = Cache(asked.engine.cache, asked.engine.block, cache_format("bf16"))
    return Generator(
        request.of_model,
        request.of_cluster,
        Placement(1, request.of_cluster.count),
        tuning.base if tuning else plain,
        cache,
        asked.engine,
    )


def _in_words(
    asked: PreferenceRequest, micro_batch: int, sequences: int, learning: Learning
) -> Iterator[str]:
    yield f"Prompts of {asked.prompt} tokens, answers of {asked.output} (--prompt, --generate)."
    if asked.method is Method.GRPO:
        yield (
            f"Each chip generates {sequences} sequences at once, {asked.generations} for a prompt "
            f"(--generations, --batch), by {asked.engine.name} (--engine)."
        )
    yield f"Micro-batches of {micro_batch} sequences (--micro-batch)."
    if not asked.has_reference:
        yield "No reference model (--reference)."
    elif learning.adapter is not None:
        yield "Reference: the model itself with its adapters disabled."
    else:
        yield "Reference: a second model, its weights sharded like the model's."
    yield (
        "Log-probabilities of answers alone, without keeping logits: TRL's fused head. Memory "
        "counts the logits of an ordinary loss."
    )
    yield from learning.assumptions


def phase_table(step: PreferenceStep) -> Table:
    """What each phase takes, in their order."""
    flops = step.flops.total.value
    seconds = None if step.time is None else step.time.typical
    return Table(
        title="A step, by phase",
        columns=(
            Column("phase", "phase", Unit.NAME),
            Column("seconds", "time", Unit.SECONDS),
            Column("seconds_share", "share", Unit.FRACTION),
            Column("flops", "FLOPs", Unit.FLOPS),
            Column("flops_share", "of FLOPs", Unit.FRACTION),
            Column("bytes", "memory", Unit.BYTES),
        ),
        rows=tuple(
            (
                phase.name,
                None if phase.time is None else phase.time.typical.value,
                None if phase.time is None or seconds is None
                else phase.time.typical.value / seconds.value,
                phase.flops.value,
                phase.flops.value / flops,
                phase.memory.value,
            )
            for phase in step.phases
        ),
        totals=(
            None, None if seconds is None else seconds.value, None if seconds is None else 1.0,
            flops, 1.0, step.memory.value,
        ),
        note="FLOPs: of all chips. Memory: of one, at the phase's fullest.",
    )  # fmt: skip
