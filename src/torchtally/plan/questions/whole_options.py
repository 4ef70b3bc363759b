"""The options of a whole training: what `tally plan` counts besides its steps."""

from collections.abc import Mapping
from dataclasses import dataclass

from torchtally.options import BANDWIDTH, COUNT, TIME, OptionGroup, OptionRecord, each, option
from torchtally.plan.goodput.prices import Prices
from torchtally.plan.goodput.rates import FailureRate
from torchtally.plan.questions.whole_forms import (
    CHECKPOINT_EVERY,
    MTBF,
    PRICES,
    PUE,
    REGION,
    STAGES,
    CheckpointInterval,
)

WHOLE = OptionGroup(
    "a whole training, with what is not a step",
    asked_by="checkpoint_every",
    remedy="an option of a whole training: add --checkpoint-every auto",
)


@dataclass(frozen=True, kw_only=True)
class WholeOptions(OptionRecord):
    """How a training is saved, evaluated, interrupted and paid for. None or False: not given."""

    checkpoint_every: CheckpointInterval | None = option(
        "--checkpoint-every",
        WHOLE,
        "ask for a whole training, saved as often as costs least (auto), or every 30min, or every "
        "500 steps",
        CHECKPOINT_EVERY,
    )
    checkpoints: str = option(
        "--checkpoints",
        WHOLE,
        "saving stops the training until written (sync, default), until copied to the hosts "
        "(async), or to another node's memory (memory)",
        choices=each("sync", "async", "memory"),
        default="sync",
    )
    checkpoint_byte_per_s: int | None = option(
        "--checkpoint-bandwidth",
        WHOLE,
        "bytes per second of the disk or object store, all chips together: 20GB/s",
        BANDWIDTH,
    )
    evaluate_every: int | None = option(
        "--evaluate-every", WHOLE, "optimizer steps from one evaluation to the next", COUNT
    )
    evaluation_tokens: int | None = option(
        "--evaluation-tokens", WHOLE, "tokens of one evaluation: 5M", COUNT
    )
    mtbf: float | FailureRate | None = option(
        "--mtbf",
        WHOLE,
        "mean time between failures of all chips together (8h), or a published rate: llama-3",
        MTBF,
    )
    restart: Mapping[str, float] | None = option(
        "--restart",
        WHOLE,
        "time of a start, without loading: 10min, or by stage: "
        "schedule=5min,containers=2min,compile=3min",
        STAGES,
    )
    repair_s: float | None = option("--repair", WHOLE, "time until a failed node is back: 4h", TIME)
    spares: int | None = option(
        "--spares", WHOLE, "spare nodes, paid for, that save the stage `schedule`", COUNT
    )
    elastic: bool = option(
        "--elastic", WHOLE, "go on with fewer replicas while a failed node is repaired"
    )
    prices: Prices | None = option(
        "--prices",
        WHOLE,
        "your prices on demand, reserved and spot, dated (TOML; docs/whole_training.md)",
        PRICES,
    )
    pue: float | None = option(
        "--pue",
        WHOLE,
        "power of the data center over that of its machines: 1.2 (default 1: no cooling)",
        PUE,
    )
    region: str | None = option(
        "--region", WHOLE, "carbon of the grid at a region of Google Cloud: europe-north1", REGION
    )


WHOLE_TRAINING = frozenset(
    (
        *("checkpoint_every", "checkpoints", "checkpoint_byte_per_s", "evaluate_every", "prices"),
        *("evaluation_tokens", "mtbf", "restart", "repair_s", "spares", "elastic", "pue", "region"),
    )
)
"""What a whole training depends on besides its steps."""
