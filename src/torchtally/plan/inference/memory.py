"""What one chip holds while a model generates: weights, caches, buffers; and how much fits."""

from dataclasses import dataclass
from math import ceil

from torchtally.memory.workspace import context_bytes
from torchtally.plan.architecture.model import Experts, Layer
from torchtally.plan.capacity import largest
from torchtally.plan.closed_form import Bytes, BytesEach, Count, Fraction, Tokens, closed_form
from torchtally.plan.inference.forward import ACTIVATION_BYTES, Generator
from torchtally.plan.inference.weights import weight_bytes
from torchtally.plan.kv_cache import layer_cache_bytes
from torchtally.plan.parallel.chip_memory import outside_bytes
from torchtally.plan.quantity import Quantity, total
from torchtally.units import Unit

TOKENS_AT_ONCE = 8192
"""Of prompts, in one forward pass: `max_num_batched_tokens` of vLLM's servers on GPUs of 70 GiB and
more (vllm/engine/arg_utils.py). A longer prompt goes in pieces."""
LOGIT_BYTES = 4
"""Tokens are chosen in float32."""
MOST_CONTEXT = 1 << 30


@dataclass(frozen=True, slots=True)
class ServingMemory:
    """Memory of one chip, at the fullest moment."""

    weights: Quantity
    cache: Quantity
    """Keys and values of all sequences of its replica."""
    buffers: Quantity
    """Activations of one forward pass, and logits: estimated."""
    outside: Quantity
    """CUDA's context and NCCL's buffers: estimated."""
    total: Quantity
    capacity: Quantity
    """What the engine takes of the chip's memory."""

    @property
    def fits(self) -> bool:
        return self.total.value <= self.capacity.value

    @property
    def parts(self) -> tuple[Quantity, ...]:
        return self.weights, self.cache, self.buffers, self.outside


def serving_memory(
    generator: Generator, sequences: int, prompt: int, context: int
) -> ServingMemory:
    """Memory of so many sequences of a replica, with prompts and at last a context of so many
    tokens.
    """
    weights, cache = held_weights(generator), held_cache(generator, sequences, context)
    buffers, outside = buffers_of(generator, sequences, prompt), outside_of(generator)
    parts = {"weights": weights, "cache": cache, "buffers": buffers, "outside": outside}
    whole = total("memory", Unit.BYTES, parts)
    return ServingMemory(weights, cache, buffers, outside, whole, capacity_of(generator))


def held_weights(generator: Generator) -> Quantity:
    """A chip's share of every weight, with its scales."""
    model = generator.model
    size = sum(
        weight_bytes(weight, model, generator.weights) * share.elements / weight.elements
        for weight, share in generator.placement.shares(model)
    )
    return Quantity("weights", ceil(size), Unit.BYTES, note=generator.weights.summary)


def held_cache(generator: Generator, sequences: int, context: int) -> Quantity:
    """Keys and values of a chip's heads."""
    parts = {
        f"kind_{n}": layer_cache_bytes(
            generator.placement.cached_layer(kind),
            context,
            sequences,
            generator.cache,
            generator.placement.tensor,
        )
        for n, kind in enumerate(generator.model.kinds)
    }
    return total("KV cache", Unit.BYTES, parts, note=generator.cache.kept.summary)


def buffers_of(generator: Generator, sequences: int, prompt: int) -> Quantity:
    """What one forward pass needs besides, and the logits of all sequences."""
    model, tensor = generator.model, generator.placement.tensor
    inner = max(_inner_width(kind) for kind in model.kinds) // tensor
    tokens = max(sequences, min(prompt, TOKENS_AT_ONCE))
    return working_buffer_bytes(
        tokens, model.width, inner, sequences, ceil(model.vocabulary / tensor)
    )


def _inner_width(kind: Layer) -> int:
    """The widest that a token is in a layer: gate and up together."""
    block = kind.feed_forward
    if block is None:
        return 0
    width = block.width
    if isinstance(block, Experts):
        width = block.active * block.width + block.shared_width
    return (1 + block.is_gated) * width


@closed_form("buffers", Unit.BYTES, "", "estimated: one layer's activations and the logits")
def working_buffer_bytes(
    tokens: Tokens, width: Count, inner_width: Count, sequences: Count, vocabulary: Count,
    item_bytes: BytesEach = ACTIVATION_BYTES, logit_bytes: BytesEach = LOGIT_BYTES,
) -> str:  # fmt: skip
    return (
        "tokens * (4 * width + 2 * inner_width) * item_bytes + sequences * vocabulary * logit_bytes"
    )


def outside_of(generator: Generator) -> Quantity:
    """CUDA's context, and NCCL's buffers for each group of chips."""
    chip, placement = generator.chip, generator.placement
    context = context_bytes(chip)
    return outside_bytes(context, (placement.tensor > 1) + (placement.expert > 1))


def capacity_of(generator: Generator) -> Quantity:
    """What the engine takes of a chip's memory."""
    chip = generator.chip
    memory = Quantity(
        "usable memory",
        chip.total_memory_bytes,
        Unit.BYTES,
        source=chip.source_of("memory_bytes"),
        note=f"of one {chip.name}",
    )
    share = generator.engine.memory_share
    if share == 1:
        return memory
    note = f"{share:.0%} of one {chip.name}"
    return usable_bytes(share, memory.with_name("memory")).with_note(note)


@closed_form("usable memory", Unit.BYTES)
def usable_bytes(share: Fraction, memory: Bytes) -> str:
    return "floor(share * memory)"


def most_sequences(generator: Generator, prompt: int, context: int) -> int:
    """Most sequences of one replica that fit at once: no more than the engine takes; 0 where none
    does.
    """
    limit = generator.engine.most_sequences or 1 << 20
    return largest(lambda count: serving_memory(generator, count, prompt, context).fits, most=limit)


def longest_context(generator: Generator, sequences: int, prompt: int) -> int:
    """Tokens of each of so many sequences of a replica that fit; 0 where not even one does."""
    return largest(
        lambda tokens: serving_memory(generator, sequences, min(prompt, tokens), tokens).fits,
        most=MOST_CONTEXT,
    )
