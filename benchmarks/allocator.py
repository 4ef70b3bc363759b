"""A simulated step with the caching allocator's model against the same step without it.

Without: an allocator that only rounds to 512 bytes and counts, as if segments and blocks did not
exist. One process, repetitions in turn.
Target: a step costs at most 1.3 times the step without.

    python -m benchmarks.allocator [--repeat 5] [--layers N] [--json FILE]
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

import torchtally
from benchmarks.measuring import (
    Spent,
    Stopwatch,
    against,
    interleaved,
    middle,
    parser,
    seconds,
    show,
    write,
)
from benchmarks.models import GPT2_124M, LLAMA_8B_CHECKPOINTED, LLAMA_70B, Model, training_step
from torchtally.memory.allocator import Block, CachingAllocator
from torchtally.memory.allocator.block import Pool
from torchtally.trace.storage import allocated_bytes
from torchtally.virtual import session

TARGET_RATIO = 1.3
MODELS = (GPT2_124M, LLAMA_8B_CHECKPOINTED, LLAMA_70B)


class Counting(CachingAllocator):
    """Allocated bytes, now and at most: no segments, no blocks to be found."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool = Pool(is_small=False)

    def allocate(self, requested_bytes: int, stream: int = 0) -> Block:
        size = allocated_bytes(requested_bytes)
        block = Block(self._next_address, size, stream, self._pool)
        self._next_address += size
        block.requested_bytes = requested_bytes
        counted = self.statistics.all
        counted.bytes += size
        if counted.bytes > counted.bytes_peak:
            counted.bytes_peak = counted.bytes
        return block

    def free(self, block: Block) -> None:
        self.statistics.all.bytes -= block.size


@contextmanager
def allocators(kind: type[CachingAllocator]) -> Iterator[None]:
    """Sessions begun inside use this kind."""
    before = session.CachingAllocator
    session.CachingAllocator = kind  # type: ignore[misc]
    try:
        yield
    finally:
        session.CachingAllocator = before  # type: ignore[misc]


def step(model: Model, kind: type[CachingAllocator]) -> Spent:
    """The second step of a run, traced."""
    gc.collect()
    spent: list[Spent] = []

    def train() -> None:
        built = model.build().to("cuda").train()
        optimizer = torch.optim.AdamW(built.parameters(), lr=1e-4)
        ids = torch.randint(0, 1000, (model.batch, model.sequence), device="cuda")
        for _ in range(2):
            with Stopwatch() as watch:
                training_step(built, ids, optimizer)
            spent.append(watch.spent)

    with allocators(kind):
        torchtally.run(train, gpu="H100-SXM", memory_is_limited=False)
    return spent[-1]


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=5)
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    args = options.parse_args(argv)
    records = []
    for whole in MODELS:
        model = whole.with_layers(args.layers)
        step(model.with_layers(1), CachingAllocator)  # torch's own first-use costs
        runs = interleaved(
            {
                "with": partial(step, model, CachingAllocator),
                "without": partial(step, model, Counting),
            },
            args.repeat,
        )
        middles = {way: middle(spent) for way, spent in runs.items()}
        ratio = middles["with"].cpu_s / middles["without"].cpu_s
        records.append(
            {
                "model": model.name,
                "cpu_s": {way: [one_run.cpu_s for one_run in spent] for way, spent in runs.items()},
                "ratio": ratio,
            }
        )
        show(
            f"{model.name}: a simulated step, median of {args.repeat}",
            ("allocator", "wall", "CPU"),
            [(way, seconds(spent.wall_s), seconds(spent.cpu_s)) for way, spent in middles.items()],
        )
        print(f"  ratio {ratio:.2f}; target {TARGET_RATIO}: {against(ratio, TARGET_RATIO)}")
    write(args.json, {"target_ratio": TARGET_RATIO, "models": records})
    return 0


if __name__ == "__main__":
    sys.exit(main())
