"""Ways to train on several GPUs, each run as one of four ranks.

Data parallel ranks each make all products of their batch, sharded or not; ranks of tensor, loss and
context parallelism make their part of them. Parameters are those of all ranks.
"""

from typing import Any

from tests.corpus.case import FIRST, WHOLE, Case, Figures
from tests.corpus.features import TWO, B, N
from tests.corpus.sums import linear, trained

RANKS = 4
WHOLE_BATCHES = (
    "DDP", "DDP static graph", "DDP fp16 hook", "DDP join", "ZeRO-1", "FSDP1", "FSDP1 mixed",
    "FSDP1 offload", "FSDP2", "FSDP2 mixed", "FSDP2 kept", "FSDP2 offload", "HSDP", "checkpoint",
    "async checkpoint",
)  # fmt: skip


def on_ranks(name: str, command: tuple[str, ...], figures: Figures, **others: Any) -> Case:
    """Three steps: the buckets of DDP are others after the first."""
    return Case(
        name=f"{name}, as one of {RANKS} ranks", kind="distributed", ranks=RANKS, figures=figures,
        command=("--steps", "3", *command), steps=3, period="steady-state step 3", **others,
    )  # fmt: skip


def way(name: str, figures: Figures, *launcher: str) -> Case:
    title = " ".join((*launcher[:1], name))
    return on_ranks(title, (*launcher, "distributed/train.py", name), figures)


def part(figures: Figures, count: int) -> Figures:
    """Of one of so many ranks that share the products."""
    return Figures(parameters=figures.parameters, flops=figures.flops // count)


d, S = 64, 128
OWN = S // RANKS
PAIRS = OWN * OWN + (RANKS - 1) * OWN * OWN // 2
"""Of queries and keys: all of the rank's own, and half of those with each other rank's (head and
tail of the sequence go to the same rank, so that masks leave all of them the same)."""
CONTEXT = Figures(
    parameters=d * 3 * d + 3 * d,
    flops=trained(first=linear(2 * OWN, d, 3 * d)) + 2 * 4 * PAIRS * d * 7 // 2,
)
LOGITS = Figures(parameters=64 * 32 + 32 * 64 + 64, flops=trained(linear(B, 32, 64)) // RANKS)

TORCHRUN = ("torchrun", "--nproc_per_node", str(RANKS))


def two_layers(rows: int) -> Figures:
    """Of the examples of tensor parallelism: 10 to 32 to 5."""
    flops = trained(linear(rows, 32, 5), first=linear(rows, 10, 32)) // RANKS
    return Figures(parameters=11 * 32 + 33 * 5, flops=flops)


def example(
    name: str, folder: str, command: tuple[str, ...], figures: Figures, **others: Any
) -> Case:
    return on_ranks(
        name, command, figures, repository="pytorch/examples", folder=f"distributed/{folder}",
        **others,
    )  # fmt: skip


ONE_LAYER = Figures(parameters=21, flops=trained(first=linear(32, 20, 1)))
EXAMPLES = (
    Case(
        name=f"ddp/example.py, as one of {RANKS} ranks", kind="distributed", ranks=RANKS,
        repository="pytorch/examples", folder="distributed/ddp",
        command=(*TORCHRUN, "example.py"), steps=1, period=FIRST, ending="exit",
        figures=Figures(
            parameters=11 * 10 + 11 * 5, flops=trained(linear(20, 10, 5), first=linear(20, 10, 10))
        ),
    ),
    example("multigpu.py", "ddp-tutorial-series", ("multigpu.py", "5", "10"), ONE_LAYER),
    example(
        "multigpu_torchrun.py", "ddp-tutorial-series",
        (*TORCHRUN, "multigpu_torchrun.py", "5", "10"), ONE_LAYER,
    ),
    example(
        "tensor_parallel_example.py", "tensor_parallelism",
        (*TORCHRUN, "tensor_parallel_example.py"), two_layers(20),
    ),
    # Each rank has rows of its own, which are gathered.
    example(
        "sequence_parallel_example.py", "tensor_parallelism",
        (*TORCHRUN, "sequence_parallel_example.py"), two_layers(RANKS * 20),
    ),
)  # fmt: skip

CASES = (
    *EXAMPLES,
    Case(
        name=f"collectives, as one of {RANKS} ranks", kind="distributed", ranks=RANKS,
        command=("distributed/primitives.py",), figures=Figures(parameters=0, flops=0),
        steps=0, period=WHOLE, ending="exit", prints=(r"ranks 4 4",),
    ),
    *(way(name, TWO) for name in WHOLE_BATCHES),
    way("DDP", TWO, "torchrun", "--nproc_per_node", str(RANKS)),
    way("DDP no_sync", Figures(parameters=TWO.parameters, flops=2 * TWO.flops)),
    way("SyncBatchNorm", Figures(parameters=TWO.parameters + 2 * N, flops=TWO.flops)),
    way("TP", part(TWO, RANKS)),
    way("SP", part(TWO, RANKS)),
    way("TP with FSDP2", part(TWO, 2)),
    Case(
        name=f"loss parallel, as one of {RANKS} ranks", kind="distributed", ranks=RANKS,
        command=("distributed/loss_parallel.py",), figures=LOGITS,
    ),
    on_ranks("context parallel", ("distributed/context.py",), CONTEXT),
    on_ranks("torch.multiprocessing.spawn", ("distributed/spawned.py",), TWO),
)  # fmt: skip
