"""torchtitan's measured runs: MFU from tokens/s, and what sharding over more GPUs saves."""

from tests.plan.published.models import A100, H100, H100_FP8, llama, llama3
from tests.plan.published.palm import with_attention
from tests.plan.published.row import GIB, PERCENT, Row, Source
from torchtally.plan.architecture.model import Model
from torchtally.plan.flops import attention_flops, token_flops
from torchtally.plan.memory import states_of_count
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Quantity, derive, of
from torchtally.plan.recipes import recipe
from torchtally.plan.training import mfu
from torchtally.units import Unit

TITAN = "pytorch/torchtitan"
ON_A100 = Source(
    "torchtitan: MFU on A100",
    f"{TITAN}, docs/performance.md before commit d4c86e3",
    "64 A100s, FSDP: tokens/s of a GPU x (6 N + 12 l h q t), attention in full, over 312e12. "
    "These rows have the input embedding in N, which is no product; `token_flops` leaves it out.",
)
ON_H100 = Source(
    "torchtitan: MFU on H100",
    f"{TITAN}, docs/performance.md before commit d4c86e3",
    "128 H100s, sequences of 8192: tokens/s of a GPU x `token_flops`, attention in full, over "
    "989.4e12 in bfloat16 and 1978.9e12 where products are in Float8.",
)
ON_8 = Source(
    "torchtitan: MFU of Llama 3 8B on 8 H100s",
    f"{TITAN}, benchmarks/llama3_h100_202412_torchtitan.md",
    "The same on 8 GPUs, in bfloat16.",
)
MEMORY = Source(
    "torchtitan: memory that more GPUs save",
    f"{TITAN}, benchmarks/llama3_h100_202412_torchtitan.md",
    "Llama 3 8B on 8 and on 128 GPUs, all states sharded over all of them: the difference of the "
    "most reserved memory. AdamW with float32 weights, gradients and moments, 16 bytes a "
    "parameter.",
)
RESERVED = (
    "Reserved memory is what the allocator took from the device, not what tensors need. What else "
    "shrinks with more GPUs is not known."
)


def with_embedding(model: Model, sequence: int) -> Quantity:
    """FLOPs of one token as torchtitan counted them at the time: 6 N of all parameters."""
    return with_attention(parameters(model).total, attention_flops(model, sequence))


def saved() -> Quantity:
    states = states_of_count(parameters(llama3("8B")).total, recipe("amp"), optimizer("adamw"))
    return derive(
        "saved on each GPU",
        Unit.BYTES,
        "states / few - states / many",
        states=states.total,
        few=of(8, Unit.CHIPS),
        many=of(128, Unit.CHIPS),
    )


def rows() -> tuple[Row, ...]:
    return (*_on_a100(), *_on_h100(), *_memory())


def _on_a100() -> tuple[Row, ...]:
    llama2_13b = llama(40, 5120, 13_824, 40, 40, 32_000)
    llama2_70b = llama(80, 8192, 28_672, 64, 8, 32_000)
    return tuple(
        Row(
            source=ON_A100,
            what=what,
            inputs=f"{speed} tokens/s",
            published=published,
            unit=PERCENT,
            computed=lambda model=model, s=sequence, v=speed: mfu(
                v, with_embedding(model, s), 1, A100
            ),
        )
        for what, model, sequence, speed, published in (
            ("Llama 3 8B, a layer in two again", llama3("8B"), 8192, 2904, "56.8"),
            ("Llama 3 8B, operators again", llama3("8B"), 8192, 2973, "58.2"),
            ("Llama 3 70B, all again", llama3("70B"), 8192, 331, "51.7"),
            ("Llama 2 13B, nothing again", llama2_13b, 4096, 2162, "61.1"),
            ("Llama 2 13B, a layer in two again", llama2_13b, 4096, 1914, "54.1"),
            ("Llama 2 13B, operators again", llama2_13b, 4096, 1904, "53.8"),
            ("Llama 2 70B, operators again", llama2_70b, 4096, 355, "50.8"),
            ("Llama 2 70B, all again", llama2_70b, 4096, 353, "50.5"),
        )
    )


def _on_h100() -> tuple[Row, ...]:
    large = token_flops(llama3("405B"), 8192).model
    small = token_flops(llama3("8B"), 8192).model
    rounded = "The tokens/s of a GPU are printed in whole numbers."
    many = tuple(
        Row(
            source=ON_H100,
            what=f"Llama 3.1 405B, {what}",
            inputs=f"{speed} tokens/s",
            published=published,
            unit=PERCENT,
            computed=lambda v=speed, peak=peak: mfu(v, large, 1, peak),
            tolerance=tolerance,
            why=rounded if tolerance else "",
        )
        for what, speed, peak, published, tolerance in (
            ("bfloat16", 109, H100, "29.0", 0.0046),
            ("Float8", 177, H100_FP8, "23.46", 0.0028),
            ("Float8, asynchronous TP", 185, H100_FP8, "24.52", 0.0027),
        )
    )
    few = tuple(
        Row(
            source=ON_8,
            what=what,
            inputs=f"{speed} tokens/s",
            published=published,
            unit=PERCENT,
            computed=lambda v=speed: mfu(v, small, 1, H100),
            tolerance=0.03 if what == "eager" else 0.0,
            why='Printed as "33 % to 39 %": cut off, not rounded.' if what == "eager" else "",
        )
        for what, speed, published in (("eager", 5762, "33"), ("compiled", 6667, "39"))
    )
    return (*many, *few)


def _memory() -> tuple[Row, ...]:
    return tuple(
        Row(
            source=MEMORY,
            what=f"Llama 3 8B, {what}",
            inputs=f"{few} - {many} GiB",
            published=published,
            unit=GIB,
            computed=saved,
            tolerance=0.1,
            why=RESERVED,
        )
        for what, few, many, published in (
            ("eager", 82.4, 67.0, "15.4"),
            ("compiled", 77.0, 62.0, "15.0"),
            ("compiled, Float8", 76.8, 61.8, "15.0"),
        )
    )
