"""Published training steps beside what `torchtally.plan.parallel` predicts for their layouts.

Nothing is fitted to these rows. What a paper does not say (micro-batch, chunks of layers) is taken
as the fastest that fits. A positive error: predicted slower than it was.

    python -m benchmarks.published_layouts [--json FILE]
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from benchmarks.measuring import parser, show, write
from torchtally.chips.clusters import cluster
from torchtally.plan.activations.setting import AttentionKernel, Implementation
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.model import FeedForward, Layer, Model, SelfAttention
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.degrees import layout_text
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.overlap import Overlap, overlap_of
from torchtally.plan.parallel.pricing import Pricing
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.recipes import recipe

NARAYANAN = "arXiv 2104.04473, table 1"
KORTHIKANTI = "arXiv 2205.05198, table 5"
LLAMA = "arXiv 2407.21783, table 4"
TITAN = "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
TITAN_A100 = "pytorch/torchtitan docs/performance.md before d4c86e3"

NO_OVERLAP = overlap_of(data=0.0)
"""Megatron-LM reduced gradients after the last backward pass until `--overlap-grad-reduce`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published step."""

    name: str
    source: str
    model: Model
    chips: str
    layout: Layout
    step_s: float
    sequence: int
    recipe: str = "mixed"
    overlap: Overlap = field(default_factory=overlap_of)
    note: str = ""
    is_micro_batch_known: bool = True
    are_chunks_known: bool = True


def megatron(heads: int, width: int, layers: int) -> Model:
    """A GPT with Megatron-LM's vocabulary and sequence."""
    return Model(
        name=f"GPT of {layers} layers",
        width=width,
        vocabulary=51200,
        is_tied=True,
        norm="layer",
        positions=2048,
        dropout=0.1,
        kinds=(
            Layer(
                count=layers,
                attention=SelfAttention(
                    heads=heads, kv_heads=heads, head_dim=width // heads, has_bias=True,
                    has_output_bias=True, is_fused=True, is_rotary=False,
                ),
                feed_forward=FeedForward(
                    width=4 * width, is_gated=False, activation="gelu", has_bias=True
                ),
            ),
        ),
    )  # fmt: skip


TABLE_1 = (
    ("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137e12),
    ("3.6B", 32, 3072, 30, 2, 1, 64, 512, 138e12),
    ("7.5B", 32, 4096, 36, 4, 1, 128, 512, 142e12),
    ("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135e12),
    ("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138e12),
    ("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140e12),
    ("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148e12),
    ("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155e12),
    ("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163e12),
    ("1008B", 160, 25600, 128, 8, 64, 3072, 3072, 163e12),
)
"""Name, heads, width, layers, tensor, pipeline, chips, sequences, FLOP/s of each chip."""

TABLE_5 = (
    ("22B", 64, 6144, 48, 8, 1, 8, 4, 4, 1, 1.42, 1.10),
    ("175B", 96, 12288, 96, 8, 8, 64, 64, 1, 3, 18.13, 13.75),
    ("530B", 128, 20480, 105, 8, 35, 280, 280, 1, 3, 49.05, 37.83),
    ("1T", 160, 25600, 128, 8, 64, 512, 512, 1, 1, 94.42, 71.49),
)
"""Name, heads, width, layers, tensor, pipeline, chips, sequences, micro-batch, chunks, seconds with
full recomputation, seconds with selective recomputation and sequence parallelism."""

OLD_MEGATRON = {"kernel": AttentionKernel.MATH, "implementation": Implementation.FUSED}
"""Before flash attention; kernels of its own for scale, mask and softmax, and for GeLU."""


def narayanan() -> Iterator[Row]:
    """Seconds follow from FLOP/s by the paper's equation 3, which counts recomputation."""
    for name, heads, width, layers, t, p, chips, batch, flop_per_s in TABLE_1:
        data = chips // t // p
        extra = 1 + 2048 / (6 * width) + 51200 / (16 * layers * width)
        flops = 96 * batch * 2048 * layers * width**2 * extra
        yield Row(
            f"Megatron {name}", NARAYANAN, megatron(heads, width, layers), f"{chips}xA100-SXM",
            Layout(data=data, tensor=t, pipeline=p, micro_batches=batch // data,
                   recompute=Recompute.FULL, **OLD_MEGATRON),
            flops / chips / flop_per_s, 2048, overlap=NO_OVERLAP, is_micro_batch_known=False,
            are_chunks_known=p == 1,
        )  # fmt: skip


def korthikanti() -> Iterator[Row]:
    for name, heads, width, layers, t, p, chips, batch, b, v, full_s, present_s in TABLE_5:
        whole = Layout(
            tensor=t, pipeline=p, micro_batch=b, micro_batches=batch // b, virtual_stages=v,
            schedule=Schedule.INTERLEAVED if v > 1 else Schedule.ONE_F_ONE_B,
            recompute=Recompute.FULL, **OLD_MEGATRON,
        )  # fmt: skip
        partly = replace(whole, recompute=Recompute.SELECTIVE, is_sequence_parallel=True)
        model = megatron(heads, width, layers)
        for layout, step_s, how in ((whole, full_s, "full"), (partly, present_s, "selective, SP")):
            yield Row(
                f"{name}, {how}", KORTHIKANTI, model, f"{chips}xA100-SXM", layout, step_s, 2048,
                overlap=NO_OVERLAP,
            )  # fmt: skip


def llama3() -> Iterator[Row]:
    """Interleaved, in chunks that are not published; 126 layers on 16 stages are 7.9 for each."""
    model = known_model("Llama 3.1 405B")
    rows = ((8192, 64, 1, 8192, 32, 430e12), (16384, 128, 1, 8192, 16, 400e12),
            (16384, 8, 16, 131072, 16, 380e12))  # fmt: skip
    for chips, data, context, sequence, batch, flop_per_s in rows:
        # MFU by the paper's own FLOP/s: 6 for each parameter and token, and attention causal.
        flops = 6 * 405.85e9 + 6 * 126 * 16384 * sequence
        tokens = sequence * batch * data
        yield Row(
            f"Llama 3 405B, {chips} chips, {sequence} tokens", LLAMA, model, f"{chips}xH100-SXM",
            Layout(data=data, tensor=8, is_sequence_parallel=True, pipeline=16, context=context,
                   shard=Sharding.ZERO2, micro_batches=batch, implementation=Implementation.FUSED,
                   schedule=Schedule.ONE_F_ONE_B),
            flops * tokens / chips / flop_per_s, sequence, "megatron",
            are_chunks_known=False,
        )  # fmt: skip


def torchtitan() -> Iterator[Row]:
    """Of H100s with 96 GB, 2.4 TB/s and a limit of 500 W, whose power is not modelled.

    "Selective" there keeps every second product; the nearest here is to keep all.
    """
    small, middle = known_model("Llama 3 8B"), known_model("Llama 3 70B")
    fused = Implementation.FUSED
    for how, implementation, speeds in (
        ("eager", Implementation.EAGER, (5762, 5605)),
        ("compiled", fused, (6667, 6514)),
    ):
        for chips, speed in zip((8, 128), speeds, strict=True):
            yield Row(
                f"Llama 3 8B, {chips} chips, {how}", TITAN, small, f"{chips}xH100-SXM-96GB",
                Layout(data=chips, shard=Sharding.ZERO3, micro_batch=2,
                       implementation=implementation),
                2 * 8192 / speed, 8192, "amp", note="500 W",
            )  # fmt: skip
    yield Row(
        "Llama 3 70B, 256 chips", "pytorch/torchtitan benchmarks/asyncTP_llama3_h100_2025-06",
        middle, "256xH100-SXM-96GB",
        Layout(data=32, tensor=8, is_sequence_parallel=True, shard=Sharding.ZERO3, micro_batch=16,
               recompute=Recompute.FULL, implementation=fused),
        16 * 8192 / (597.3 * 8), 8192, "amp", note="500 W",
    )  # fmt: skip
    for model, speed, batch, sequence, how in (
        ("Llama 3 70B", 331, 1, 8192, Recompute.FULL),
        ("Llama 2 13B", 2162, 2, 4096, Recompute.NONE),
        ("Llama 2 70B", 353, 2, 4096, Recompute.FULL),
    ):
        yield Row(
            f"{model}, 64 chips", TITAN_A100, known_model(model), "64xA100-SXM",
            Layout(data=64, shard=Sharding.ZERO3, micro_batch=batch, recompute=how,
                   implementation=fused),
            batch * sequence / speed, sequence, "amp",
        )  # fmt: skip


ROWS = (*narayanan(), *korthikanti(), *llama3(), *torchtitan())


def predicted(row: Row) -> Step:
    """The fastest of what is not published that fits; if nothing does, the smallest."""
    pricing = Pricing(
        Workload(
            model=row.model, cluster=cluster(row.chips), sequence=row.sequence,
            recipe=recipe(row.recipe), optimizer=optimizer("adamw"), overlap=row.overlap,
        )
    )  # fmt: skip
    steps = [pricing.step(layout) for layout in layouts(row)]
    fitting = [step for step in steps if step.fits]
    if not fitting:
        return min(steps, key=lambda step: step.memory.total.value)
    return min(fitting, key=lambda step: step.seconds.value)


def layouts(row: Row) -> Iterator[Layout]:
    """What the row leaves open."""
    layout = row.layout
    sizes = [1, 2, 4, 8, 16] if not row.is_micro_batch_known else [layout.micro_batch]
    whole = layout.micro_batch * layout.micro_batches
    per_stage = -(-row.model.layers // layout.pipeline)
    chunks = [layout.virtual_stages]
    if not row.are_chunks_known:
        chunks = [v for v in range(1, per_stage + 1) if per_stage % v == 0]
    for size in sizes:
        if whole % size:
            continue
        for v in chunks:
            if v > 1 and (whole // size) % layout.pipeline:
                continue
            schedule = Schedule.INTERLEAVED if v > 1 else layout.schedule
            yield replace(layout, micro_batch=size, micro_batches=whole // size, virtual_stages=v,
                          schedule=schedule)  # fmt: skip


def compared(row: Row) -> dict[str, Any]:
    step = predicted(row)
    return {
        "name": row.name,
        "source": row.source,
        "note": row.note,
        "layout": layout_text(step.layout),
        "published_s": row.step_s,
        "predicted_s": step.seconds.value,
        "error": step.seconds.value / row.step_s - 1,
        "bound": step.bound,
        "fits": step.fits,
        "memory_bytes": step.memory.total.value,
    }


def main(argv: list[str] | None = None) -> int:
    args = parser(__doc__).parse_args(argv)
    comparisons = [compared(row) for row in ROWS]
    by_source: dict[str, list[dict[str, Any]]] = {}
    for entry in comparisons:
        by_source.setdefault(entry["source"], []).append(entry)
    for source, rows in by_source.items():
        show(
            source,
            ("", "published", "predicted", "error", "memory", "layout"),
            [
                (
                    row["name"], f"{row['published_s']:.2f} s", f"{row['predicted_s']:.2f} s",
                    f"{row['error']:+.1%}",
                    f"{row['memory_bytes'] / 2**30:.1f} GiB{'' if row['fits'] else ' (too much)'}",
                    row["layout"],
                )
                for row in rows
            ],
        )  # fmt: skip
    errors = [abs(entry["error"]) for entry in comparisons]
    signed = median(entry["error"] for entry in comparisons)
    print(f"{len(comparisons)} rows: median error {median(errors):.1%}, largest {max(errors):.1%},"
          f" median with its sign {signed:+.1%}")  # fmt: skip
    write(args.json, {"rows": comparisons, "median_error": median(errors)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
