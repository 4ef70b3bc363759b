"""How fast does this model answer on these chips, how many at once, and for how much?"""

from collections.abc import Iterator
from dataclasses import replace

from torchtally.chips.power import mean_power_watts
from torchtally.errors import UsageError
from torchtally.plan.architecture.model import Experts
from torchtally.plan.capacity import largest
from torchtally.plan.inference.draft import Draft
from torchtally.plan.inference.forward import Generator
from torchtally.plan.inference.memory import (
    ServingMemory,
    held_weights,
    most_sequences,
    serving_memory,
)
from torchtally.plan.inference.serving import Serving, compute_bound_sequences, hours_of_tokens
from torchtally.plan.kv_cache import CacheKind, kv_cache_bytes, wasted_bytes
from torchtally.plan.quantity import Quantity, of, total
from torchtally.plan.questions.answer import Answer, Part
from torchtally.plan.questions.bill import price_of, unknown_costs
from torchtally.plan.questions.inference_request import draft_of, generator_of, lengths
from torchtally.plan.questions.plan_options import GUESSED, MODEL, SERVED
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.shares import memory_by_category
from torchtally.plan.questions.uses import uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.questions.workload import shape_of, with_shape
from torchtally.plan.training import cost_usd, energy_joules
from torchtally.table import Column, Table
from torchtally.timing.roofline.rates import named_peak
from torchtally.units import Unit, format_bytes

PREDICTION = (
    "Best: kernels at their best published rates. Slow: nine in ten published speeds that the "
    "constants were fitted to took no longer (docs/inference.md)."
)


@uses(
    MODEL, SERVED, GUESSED, "global_batch", "sequence", "generate", "pace", "usd_per_hour", "rows"
)
def inference(request: Request) -> Answer:
    """Time to the first token and per token, tokens per second, memory, cost, energy."""
    request = with_shape(request, is_trained=False)
    served = serving_of(request)
    memory = memory_of(served)
    most = _most(served)
    figures = [*_speeds(served), *_memory_figures(served, memory, most)]
    figures += _bill(request, served)
    return Answer(
        question="inference",
        headline=tuple(_headline(request, served, memory, most)),
        figures=tuple(figures),
        tables=(
            *((_batches(request, served, most),) if most else ()),
            memory_table(memory),
            _time_table(served),
        ),
        assumptions=tuple(assumptions(request, served)),
        unknown=(*left_out(request), UNKNOWN, *unknown_costs(request, request.chip)),
    )


def serving_of(request: Request) -> Serving:
    """Raises UsageError where the batch does not divide among the replicas."""
    generator = generator_of(request)
    prompt, output = lengths(request, generator.model)
    replicas = generator.placement.replicas
    batch = request.global_batch or replicas
    if batch % replicas:
        raise UsageError(
            f"--batch {batch} does not divide among {replicas} replicas: give a multiple of "
            f"{replicas}."
        )
    draft = draft_of(request, generator)
    return Serving(generator, batch // replicas, prompt, output, draft)


def memory_of(served: Serving) -> ServingMemory:
    """Memory of a chip; with a draft, what the draft's weights leave is what there is for the
    model. Its own prediction modules are among its layers.
    """
    memory = serving_memory(served.generator, served.sequences, served.prompt, served.context)
    if served.draft is None or served.draft.is_own:
        return memory
    small = serving_memory(served.draft.generator, served.sequences, 1, served.context)
    parts = {"model": memory.total, "draft_weights": small.weights, "draft_cache": small.cache}
    whole = total("memory", Unit.BYTES, parts)
    return replace(
        memory,
        weights=_both("weights", memory.weights, small.weights),
        cache=_both("KV cache", memory.cache, small.cache),
        total=whole,
    )


def _both(name: str, model: Quantity, draft: Quantity) -> Quantity:
    return total(name, Unit.BYTES, {"model": model, "draft": draft})


def _most(served: Serving) -> int:
    """Sequences of one replica that fit at once."""
    generator = served.generator
    if served.draft is None:
        return most_sequences(generator, served.prompt, served.context)
    limit = generator.engine.most_sequences or 1 << 20
    return largest(lambda n: memory_of(replace(served, sequences=n)).fits, most=limit)


def _headline(
    request: Request, served: Serving, memory: ServingMemory, most: int
) -> Iterator[Part]:
    generator = served.generator
    yield f"{subject_text(request)} in {generator.weights.name} on "
    yield from chips_text(request.of_cluster)
    if not memory.fits:
        yield " does not fit: "
        yield memory.total
        yield " of "
        yield memory.capacity
        yield f" ({_remedy(served)}); it would take "
    else:
        yield ": "
    yield served.first_token_s
    yield f" to the first token of {served.prompt}, "
    yield served.token_s
    yield " a token (best "
    yield served.best.token_s
    yield ", slow "
    yield served.slow(served.token_s)
    yield ")"
    if memory.fits and most > served.sequences:
        yield from _at_most(request, replace(served, sequences=most))


def _remedy(served: Serving) -> str:
    held = held_weights(served.generator).value
    room = served.generator.chip.total_memory_bytes
    if held < room:
        return "fewer sequences, a shorter context, --kv-cache fp8 or more chips help"
    return f"weights alone are {format_bytes(int(held))} a chip: more chips or --weights awq help"


def _at_most(request: Request, full: Serving) -> Iterator[Part]:
    yield f"; {full.sequences * full.generator.placement.replicas} sequences fit at once: "
    yield full.tokens_per_s
    yield " generated"
    price = _price(request, full)
    if price is not None:
        yield ", "
        yield price
        yield " a million"


def _price(request: Request, served: Serving) -> Quantity | None:
    """Price of a million tokens written, with the prompts that they take."""
    price = price_of(request, request.chip)
    if price is None:
        return None
    return cost_usd(hours_of_tokens(request.of_chips, 10**6, served.tokens_per_s), price)


def _speeds(served: Serving) -> Iterator[Quantity]:
    yield served.first_token_s
    yield served.token_s
    yield served.best.token_s.with_name("best time per token")
    yield served.slow(served.token_s).with_name("slow time per token")
    yield served.tokens_per_s.with_note("generated, with prompts in between")
    yield served.decode_tokens_per_s.with_name("decode tokens/s").with_note("prefill elsewhere")
    yield served.prompt_tokens_per_s.with_name("prefill tokens/s").with_note("prefill only")


def _memory_figures(served: Serving, memory: ServingMemory, most: int) -> Iterator[Quantity]:
    generator = served.generator
    model, cache = generator.model, generator.cache
    yield memory.total
    yield memory.capacity
    yield kv_cache_bytes(model, served.context, 1, cache).with_name("KV cache of one sequence")
    wasted = _wasted_quantity(served)
    if wasted.value:
        yield wasted
    replicas = generator.placement.replicas
    fitting = of(most * replicas, Unit.COUNT).with_name("sequences that fit at once")
    yield fitting.with_note("as many as the engine takes" * (most == _slots(served)))
    yield compute_bound_sequences(generator)


def _slots(served: Serving) -> int | None:
    return served.generator.engine.most_sequences


def _wasted_quantity(served: Serving) -> Quantity:
    """Tokens of a sequence's last pages that none takes."""
    model, cache = served.generator.model, served.generator.cache
    paged = kv_cache_bytes(model, served.context, 1, cache)
    tight = kv_cache_bytes(model, served.context, 1, replace(cache, block=1))
    return wasted_bytes(paged, tight)


def _bill(request: Request, served: Serving) -> Iterator[Quantity]:
    """Bill of reading and of writing by themselves: chips that do nothing else."""
    chips, chip = request.of_chips, request.chip
    price = price_of(request, chip)
    speeds = {"input": served.prompt_tokens_per_s, "output": served.decode_tokens_per_s}
    if price is not None:
        for name, speed in speeds.items():
            cost = cost_usd(hours_of_tokens(chips, 10**6, speed), price)
            yield cost.with_name(f"cost of 1M {name} tokens")
    if chip.tdp_watts is not None:
        watts = Quantity(
            f"{chip.name} rated power",
            mean_power_watts(chip.tdp_watts),
            Unit.WATTS,
            source=chip.source_of("tdp_watts"),
        )
        for name, speed in speeds.items():
            energy = energy_joules(hours_of_tokens(chips, 1, speed), watts)
            energy = energy.with_name(f"energy of an {name} token")
            yield energy.with_note("estimated: chips at rated power")


# Tables -------------------------------------------------------------------------------------------


def _batches(request: Request, served: Serving, most: int) -> Table:
    """Table of batches, from one sequence of each replica to as many as fit."""
    sizes = {1 << power for power in range(0, most.bit_length(), 2)} | {most, served.sequences}
    steps = sorted(size for size in sizes if size <= most)
    shown = steps[-(request.rows or 10) :]
    has_price = price_of(request, request.chip) is not None
    price = (Column("usd_per_million", "1M tokens", Unit.USD),) * has_price
    rows = []
    for size in shown:
        each = replace(served, sequences=size)
        cost = _price(request, each)
        rows.append(
            (
                size * served.generator.placement.replicas,
                each.token_s.value,
                1 / float(each.token_s.value),
                each.tokens_per_s.value,
                *(() if cost is None else (cost.value,)),
                memory_of(each).total.value,
                _largest_part(each),
            )
        )
    return Table(
        title="By sequences at once",
        columns=(
            Column("sequences", "sequences", Unit.COUNT),
            Column("token_s", "a token", Unit.SECONDS),
            Column("tokens_per_s_each", "each", Unit.TOKEN_PER_S),
            Column("tokens_per_s", "generated", Unit.TOKEN_PER_S),
            *price,
            Column("memory_bytes", "memory", Unit.BYTES, rank=1),
            Column("bound", "mostly", Unit.WORD, rank=2),
        ),
        rows=tuple(rows),
        totals=(None,) * (6 + has_price),
        left_out=len(steps) - len(shown),
        note=(
            "Generated: by all chips, with prompts in between. 1M tokens: generated, prompts "
            "included."
        ),
    )


def _largest_part(served: Serving) -> str:
    """The largest part of a token's time."""
    return max(served.decode.parts, key=lambda part: part[1].value)[0]


def memory_table(memory: ServingMemory) -> Table:
    """What one chip holds, largest first."""
    parts = ((part.name, part, part.note) for part in memory.parts)
    return memory_by_category("Memory of one chip, by category", parts, memory.total.value)


def _time_table(served: Serving) -> Table:
    """Table of the times of a prompt and of a token, side by side."""
    prompt, token = served.prefill, served.decode
    rows = tuple(
        (name, read.value, read.value / prompt.total.value, written.value,
         written.value / token.total.value)
        for (name, read), (_, written) in zip(prompt.parts, token.parts, strict=True)
        if read.value or written.value
    )  # fmt: skip
    return Table(
        title="Time of a prompt, and of one token of every sequence",
        columns=(
            Column("part", "part", Unit.NAME),
            Column("prompt_s", "prompt", Unit.SECONDS),
            Column("prompt_share", "share", Unit.FRACTION),
            Column("token_s", "token", Unit.SECONDS),
            Column("token_share", "share", Unit.FRACTION),
        ),
        rows=rows,
        totals=(None, prompt.total.value, 1.0, token.total.value, 1.0),
        note="Engine: its overhead besides kernels."
        + " Without draft tokens." * bool(served.draft),
    )


# Words --------------------------------------------------------------------------------------------


def assumptions(request: Request, served: Serving) -> Iterator[str]:
    generator = served.generator
    _, of_shape = shape_of(request)
    yield from of_shape
    yield (
        f"Prompts of {served.prompt} tokens, {served.output} generated for each (--prompt, "
        "--generate, --context)."
    )
    yield _batch_in_words(served)
    yield f"Weights: {generator.weights.summary}; here in {_dtype(generator)} (--weights)."
    yield cache_in_words(generator.cache.kept.summary, generator.cache.kind, generator.cache.block)
    if generator.cluster.count > 1:
        yield f"Layout: {generator.placement.name} (--layout 'tp 4, dp 2')."
    yield from _engine_in_words(served)
    if any(isinstance(kind.feed_forward, Experts) for kind in generator.model.kinds):
        yield "Balanced routing: every expert gets as many tokens."
    if served.draft is not None:
        yield _draft_in_words(served.draft)


def _dtype(generator: Generator) -> str:
    """Dtype of products: what the chip computes them in."""
    return named_peak(generator.dtype, generator.chip)[0]


def _batch_in_words(served: Serving) -> str:
    replicas = served.generator.placement.replicas
    count = "One sequence" if served.sequences == 1 else f"{served.sequences} sequences"
    each = f" in each of {replicas} replicas" if replicas > 1 else ""
    return f"{count} at once{each} (--batch)."


def cache_in_words(summary: str, kind: CacheKind, block: int) -> str:
    pages = f", in pages of {block} tokens" if block > 1 else ""
    return f"KV cache: {summary}{pages} ({kind}: --kv-cache, --kv-block, --engine)."


def _engine_in_words(served: Serving) -> Iterator[str]:
    who, chip = served.generator.engine, served.generator.chip
    if served.best.token_s.value == served.token_s.value:
        yield "Kernels at their best published rates; hosts run ahead."
        return
    is_told = who.experts < 1 and served.generator.model.is_mixture
    experts = f" (of experts {who.experts:.0%} of that)" if is_told else ""
    yield (
        f"Engine: {who.summary}; products at {who.pace.products_of(chip):.0%}{experts} and passes "
        f"over memory at {who.pace.passes:.0%} of the best published rates, by {who.source} "
        "(--engine)."
    )
    yield PREDICTION


def _draft_in_words(draft: Draft) -> str:
    who = "the prediction module" if draft.is_own else draft.generator.model.name
    tokens = "one token" if draft.guesses == 1 else f"{draft.guesses} tokens, each"
    return (
        f"Speculative decoding: {who} drafts {tokens} "
        f"accepted with {draft.acceptance:.0%} (--draft, --guesses, --acceptance)."
    )


UNKNOWN = "queueing, shared prefixes, preemption when memory runs out"


def left_out(request: Request) -> tuple[str, ...]:
    """Parts of the model that are in no figure."""
    model, _ = shape_of(request)
    return tuple(f"{part}: not counted" for part in model.left_out)
