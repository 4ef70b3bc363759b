"""What do weights and the KV cache take, on any chip, in which format? And how much of it fits?"""

from collections.abc import Iterator
from dataclasses import replace

from torchtally.errors import UsageError
from torchtally.plan.architecture.model import LatentAttention, Layer, Model
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.inference.formats import WEIGHT_FORMATS, WeightFormat
from torchtally.plan.inference.memory import longest_context, most_sequences, serving_memory
from torchtally.plan.inference.weights import bits_each, model_bytes
from torchtally.plan.kv_cache import (
    CACHE_FORMATS,
    Cache,
    kept_tokens,
    kv_cache_bytes,
    layer_cache_bytes,
)
from torchtally.plan.quantity import Quantity, of, total
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.inference import cache_in_words, left_out, memory_table
from torchtally.plan.questions.inference_request import cache_of, format_of, generator_of, lengths
from torchtally.plan.questions.limits import most_tokens
from torchtally.plan.questions.plan_options import MODEL, SERVED
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.uses import uses
from torchtally.plan.questions.words import chips_text, subject_text
from torchtally.plan.questions.workload import shape_of, with_shape
from torchtally.table import Column, Table
from torchtally.units import Unit, format_bytes

SHOWN_FORMATS = ("bf16", "fp8", "int8", "int4", "awq", "nvfp4", "mxfp4-all", "q8_0", "q4_K_M")


@uses(MODEL, SERVED - {"memory_bytes"}, "sequence", "generate", "global_batch")
def inference_memory(request: Request) -> Answer:
    """Bytes of the weights, of one token and of a whole context, in every format."""
    request = with_shape(request, is_trained=False)
    model, of_shape = shape_of(request)
    prompt, output = lengths(request, model)
    context, batch = prompt + output, request.global_batch or 1
    kept, cache = format_of(request, model), cache_of(request)
    weights = model_bytes(model, kept)
    whole = kv_cache_bytes(model, context, batch, cache)
    token = per_token(model, cache)
    sequences = f" of {batch} sequences" if batch > 1 else ""
    return Answer(
        question="inference-memory",
        headline=(
            f"{subject_text(request)}: weights ",
            weights,
            f" in {kept.name}, KV cache{sequences} of {context} tokens ",
            whole,
            f" in {cache.kept.name} (",
            token,
            " a token while no window is full)",
        ),
        figures=(
            weights,
            whole,
            token.with_name("KV cache of one token"),
            total("weights and cache", Unit.BYTES, {"weights": weights, "cache": whole}),
        ),
        tables=(
            _layers_table(model, context, cache),
            _weights_table(model, kept),
            _cache_table(model, context, batch, cache),
        ),
        assumptions=(
            *of_shape,
            f"Weights: {kept.summary} (--weights).",
            cache_in_words(cache.kept.summary, cache.kind, cache.block),
        ),
        unknown=(
            *left_out(request),
            "time, and other memory of a chip (--gpus H100-SXM counts them)",
        ),
    )


def per_token(model: Model, cache: Cache) -> Quantity:
    """Bytes of one more token of a short sequence. The state of a recurrence does not grow."""
    grows = tuple(
        replace(kind, recurrence=None) for kind in model.kinds if kind.attention is not None
    )
    return kv_cache_bytes(replace(model, kinds=grows), 1, 1, replace(cache, block=1))


@uses(MODEL, SERVED, "sequence", "generate", "largest")
def most_sequences_served(request: Request) -> Answer:
    """Answer with as many sequences as fit, beside the weights."""
    request = with_shape(request, is_trained=False)
    generator = generator_of(request)
    prompt, output = lengths(request, generator.model)
    context, replicas = prompt + output, generator.placement.replicas
    most = most_sequences(generator, prompt, context)
    if not most:
        raise UsageError(_nothing_fits(request, context))
    memory = serving_memory(generator, most, prompt, context)
    count = of(most * replicas, Unit.COUNT).with_name("sequences at once")
    is_full = most == generator.engine.most_sequences
    return Answer(
        question="most-sequences",
        headline=(
            count,
            f" sequences of {context} tokens fit ",
            *chips_text(request.of_cluster),
            f" with {subject_text(request)} in {generator.weights.name}",
            ", as many as the engine takes" if is_full else "",
        ),
        figures=(count, memory.total, memory.capacity),
        tables=(memory_table(memory),),
        assumptions=tuple(_words(request)),
    )


@uses(MODEL, SERVED, "global_batch", "largest")
def longest_context_served(request: Request) -> Answer:
    """The longest sequences of which so many fit, beside the weights."""
    request = with_shape(request, is_trained=False)
    generator = generator_of(request)
    replicas = generator.placement.replicas
    batch = request.global_batch or replicas
    prompt, _ = lengths(request, generator.model)
    longest = longest_context(generator, max(1, batch // replicas), prompt)
    longest = min(longest, most_tokens(generator.model, longest))
    if not longest:
        raise UsageError(_nothing_fits(request, 1))
    memory = serving_memory(generator, max(1, batch // replicas), min(prompt, longest), longest)
    tokens = of(longest, Unit.TOKENS).with_name("longest context")
    return Answer(
        question="longest-context",
        headline=(
            f"{longest} tokens of context fit ",
            *chips_text(request.of_cluster),
            f" for {_sequences(batch)} with {subject_text(request)} in {generator.weights.name}",
        ),
        figures=(tokens, memory.total, memory.capacity),
        tables=(memory_table(memory),),
        assumptions=tuple(_words(request)),
        unknown=_beyond(generator.model, longest),
    )


def _sequences(batch: int) -> str:
    return "one sequence" if batch == 1 else f"{batch} sequences at once"


LARGEST_SERVED = {"batch": most_sequences_served, "sequence": longest_context_served}
"""What --largest asks of inference."""


def _beyond(model: Model, tokens: int) -> tuple[str, ...]:
    if model.context is None or tokens <= model.context:
        return ()
    return (f"quality beyond the context length of {model.name}: {model.context} tokens",)


def _nothing_fits(request: Request, context: int) -> str:
    generator = generator_of(request)
    memory = serving_memory(generator, 1, 1, context)
    return (
        f"out of memory: one sequence of {context} tokens takes "
        f"{format_bytes(int(memory.total.value))} of {format_bytes(int(memory.capacity.value))} on "
        f"each of {generator.cluster.count} {generator.chip.name}. More chips, --weights awq or "
        "--kv-cache fp8 may help."
    )


def _words(request: Request) -> Iterator[str]:
    generator = generator_of(request)
    yield from shape_of(request)[1]
    yield f"Weights: {generator.weights.summary} (--weights)."
    cache = generator.cache
    yield cache_in_words(cache.kept.summary, cache.kind, cache.block)
    yield f"Layout: {generator.placement.name} (--layout 'tp 4, dp 2')."
    yield f"Engine: {generator.engine.summary} (--engine)."


# Tables -------------------------------------------------------------------------------------------


def _layers_table(model: Model, context: int, cache: Cache) -> Table:
    """Every kind of layer: what it keeps of a sequence."""
    rows = [(kind, layer_cache_bytes(kind, context, 1, cache).value) for kind in model.kinds]
    whole = sum(size for _, size in rows)
    return Table(
        title="KV cache of one sequence, by kind of layer",
        columns=(
            Column("attention", "attention", Unit.NAME),
            Column("layers", "layers", Unit.COUNT),
            Column("tokens", "tokens kept", Unit.TOKENS),
            Column("bytes", "memory", Unit.BYTES),
            Column("bytes_share", "share", Unit.FRACTION),
        ),
        rows=tuple(
            (attention_text(kind), kind.count, _kept_text(kind, context, cache), size, size / whole)
            for kind, size in rows
        ),
        totals=(None, model.layers, None, whole, 1.0),
    )


def _kept_text(kind: Layer, context: int, cache: Cache) -> int | None:
    tokens = of(context, Unit.TOKENS, "context")
    if kind.attention is None:
        return None
    return int(kept_tokens(kind.attention, tokens, cache).value)


def attention_text(kind: Layer) -> str:
    """Text like "8 of 32 heads, window 4096"."""
    attention = kind.attention
    if kind.is_predicting:
        return f"{attention_text(replace(kind, is_predicting=False))}, predicting"
    if kind.recurrence is not None:
        beside = () if attention is None else (attention_text(replace(kind, recurrence=None)),)
        return "; ".join((kind.recurrence.label, *beside))
    if attention is None:
        return "none"
    if isinstance(attention, LatentAttention):
        return f"latent, rank {attention.kv_rank} + {attention.rotary_head_dim}"
    shared = "" if attention.kv_heads == attention.heads else f" of {attention.heads}"
    name = "chunks of" if attention.is_chunked else "window"
    window = f", {name} {attention.window}" if attention.window else ""
    return f"{attention.kv_heads}{shared} heads of {attention.head_dim}{window}"


def _weights_table(model: Model, asked: WeightFormat) -> Table:
    parameters = sum(weight.elements for weight in weights_of(model))
    names = dict.fromkeys((asked.name, *SHOWN_FORMATS))
    return Table(
        title="Weights, by format",
        columns=(
            Column("format", "format", Unit.NAME),
            Column("bits_per_number", "bits each", Unit.NUMBER),
            Column("bytes", "memory", Unit.BYTES),
            Column("note", "what", Unit.TEXT, rank=1),
        ),
        rows=tuple(
            (
                name,
                float(bits_each(model, WEIGHT_FORMATS[name])),
                model_bytes(model, WEIGHT_FORMATS[name]).value,
                WEIGHT_FORMATS[name].summary,
            )
            for name in names
        ),
        totals=(None,) * 4,
        note=f"Bits each: over {parameters:,} parameters, with scales and unquantised tensors.",
    )


def _cache_table(model: Model, context: int, batch: int, cache: Cache) -> Table:
    return Table(
        title=f"KV cache of {batch} x {context} tokens, by format",
        columns=(
            Column("format", "format", Unit.NAME),
            Column("bytes", "memory", Unit.BYTES),
            Column("bytes_per_token", "a token", Unit.BYTES),
            Column("note", "what", Unit.TEXT, rank=1),
        ),
        rows=tuple(
            (
                kept.name,
                kv_cache_bytes(model, context, batch, replace(cache, kept=kept)).value,
                per_token(model, replace(cache, kept=kept)).value,
                kept.summary,
            )
            for kept in CACHE_FORMATS.values()
        ),
        totals=(None,) * 4,
    )
