"""How long it takes to rank every layout of a training on a cluster.

Llama 3 70B on 1024 H100-SXM, steps of 2048 sequences of 8192 tokens: target 5 s, imports and all.
DeepSeek-V3 on 2048 of them, steps of 15360 sequences of 4096 tokens: target 10 s.

    python -m benchmarks.layout_search [--repeat 3] [--model NAME] [--chips NAME] [--json FILE]
    python -m benchmarks.layout_search --model DeepSeek-V3 --chips 2048xH100-SXM --sequence 4096 \
        --batch 15360 --target 10
"""

import json
import sys
from typing import Any

from benchmarks.measuring import (
    Stopwatch,
    against,
    interleaved,
    megabytes,
    middle,
    parser,
    peak_rss_bytes,
    seconds,
    show,
    spent_on,
    write,
)

TARGET_S = 5.0


def searched(model: str, chips: str, sequence: int, global_batch: int) -> dict[str, Any]:
    """One search, in this process, which should be a fresh one."""
    with Stopwatch() as imports:
        from torchtally.chips.clusters import cluster
        from torchtally.plan.architecture.known import known_model
        from torchtally.plan.optimizers import optimizer
        from torchtally.plan.parallel.degrees import layout_text
        from torchtally.plan.parallel.search import search
        from torchtally.plan.parallel.step import Workload
        from torchtally.plan.recipes import recipe

        work = Workload(
            model=known_model(model),
            cluster=cluster(chips),
            sequence=sequence,
            recipe=recipe("mixed"),
            optimizer=optimizer("adamw"),
        )
    with Stopwatch() as stopwatch:
        ranking = search(work, global_batch)
    return {
        "imports": {"wall_s": imports.spent.wall_s, "cpu_s": imports.spent.cpu_s},
        "search": {"wall_s": stopwatch.spent.wall_s, "cpu_s": stopwatch.spent.cpu_s},
        "peak_rss_bytes": peak_rss_bytes(),
        "tried": ranking.tried,
        "fitting": ranking.fitting,
        "best": [
            {
                "layout": layout_text(step.layout),
                "step_s": step.seconds.value,
                "mfu": step.mfu.value,
                "memory_bytes": step.memory.total.value,
                "bound": step.bound,
            }
            for step in ranking.steps[:5]
        ],
    }


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--model", default="Llama 3 70B", metavar="NAME")
    options.add_argument("--chips", default="1024xH100-SXM", metavar="NAME")
    options.add_argument("--sequence", type=int, default=8192, metavar="TOKENS")
    options.add_argument("--batch", type=int, default=2048, metavar="SEQUENCES")
    options.add_argument("--target", type=float, default=TARGET_S, metavar="S")
    options.add_argument("--once", action="store_true", help="one search here, as JSON on stdout")
    args = options.parse_args(argv)
    result = searched(args.model, args.chips, args.sequence, args.batch) if args.once else None
    if result is not None:
        print(json.dumps(result))
        return 0
    arguments = [
        "--model",
        args.model,
        "--chips",
        args.chips,
        "--sequence",
        str(args.sequence),
        "--batch",
        str(args.batch),
    ]
    command = [sys.executable, "-m", "benchmarks.layout_search", "--once", *arguments]
    runs = interleaved({"whole process": lambda: spent_on(command)}, args.repeat)
    whole = middle(runs["whole process"])
    one = searched(args.model, args.chips, args.sequence, args.batch)
    show(
        f"{args.model} on {args.chips}: {one['tried']} layouts, {one['fitting']} fit",
        ("", "wall", "CPU"),
        [
            (
                f"whole process (median of {args.repeat})",
                seconds(whole.wall_s),
                seconds(whole.cpu_s),
            ),
            (
                "search alone, here",
                seconds(one["search"]["wall_s"]),
                seconds(one["search"]["cpu_s"]),
            ),
        ],
    )
    print(
        f"  target {args.target:g} s: {against(whole.wall_s, args.target)};"
        f" peak RSS {megabytes(whole.peak_rss_bytes)}"
    )
    show(
        "The fastest",
        ("", "step", "MFU", "memory", "bound"),
        [
            (
                record["layout"],
                f"{record['step_s']:.2f} s",
                f"{record['mfu']:.1%}",
                f"{record['memory_bytes'] / 2**30:.1f} GiB",
                record["bound"],
            )
            for record in one["best"]
        ],
    )
    write(
        args.json,
        {
            "target_s": args.target,
            "wall_s": [process.wall_s for process in runs["whole process"]],
            "search": one,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
