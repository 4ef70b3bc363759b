"""Llama-3-70B from its config, batch 1 x 4096: trace an AdamW step, account for it, report it.

As a user does it (`tally run` on a script of ten lines, imports and all, in a fresh process), and
part by part from Python. Target: 10 s and 1.5 GB on two cores.

    python -m benchmarks.llama70b [--repeat 3] [--layers 80] [--json FILE]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measuring import (
    TALLY,
    Spent,
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
from benchmarks.models import LLAMA_70B, Model, training_step

TARGET_WALL_S = 10.0
TARGET_PEAK_BYTES = 1_500_000_000

IMPORTS = "import torch, transformers; transformers.LlamaForCausalLM"


def from_python(model: Model) -> dict[str, Any]:
    """Seconds of each part, in this process, which should be a fresh one."""
    parts: dict[str, Spent] = {}
    with Stopwatch() as watch:
        exec(IMPORTS)
    parts["import torch and transformers"] = watch.spent

    import torch

    import torchtally
    from torchtally.report.text import summary_text
    from torchtally.views.summary import summarise

    def train() -> None:
        with Stopwatch() as watch:
            built = model.build().to("cuda")
            optimizer = torch.optim.AdamW(built.parameters(), lr=1e-4)
        parts["build the model"] = watch.spent
        ids = torch.randint(0, 1000, (model.batch, model.sequence), device="cuda")
        with Stopwatch() as watch:
            training_step(built, ids, optimizer)
        parts["trace a step"] = watch.spent

    with Stopwatch() as whole:
        trace = torchtally.run(train, gpu="H100-SXM", memory_is_limited=False)
    parts["make the trace of it"] = Spent(
        whole.spent.wall_s - parts["build the model"].wall_s - parts["trace a step"].wall_s,
        whole.spent.cpu_s - parts["build the model"].cpu_s - parts["trace a step"].cpu_s,
    )
    with Stopwatch() as watch:
        ledger = torchtally.account(trace)
    parts["account for it"] = watch.spent
    with Stopwatch() as watch:
        summary_text(summarise(ledger))
    parts["report it"] = watch.spent
    with tempfile.TemporaryDirectory() as folder, Stopwatch() as watch:
        trace.save(f"{folder}/run.tally")
    parts["write the trace"] = watch.spent
    return {
        "parts": {
            name: {"wall_s": spent.wall_s, "cpu_s": spent.cpu_s} for name, spent in parts.items()
        },
        "peak_rss_bytes": peak_rss_bytes(),
        "operators": len(trace.ops),
        "flops": ledger.total.flops,
        "peak_allocated_bytes": ledger.memory.peak_bytes,
    }


def in_fresh_process(layers: int) -> dict[str, Any]:
    """`from_python` where nothing has been imported yet."""
    command = [sys.executable, "-m", "benchmarks.llama70b", "--layers", str(layers), "--parts"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    options.add_argument("--parts", action="store_true", help="only the parts, as JSON on stdout")
    args = options.parse_args(argv)
    model = LLAMA_70B.with_layers(args.layers)
    if args.parts:
        print(json.dumps(from_python(model)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(model.script())
        tally = [TALLY, "run", "train.py", "--gpu", "H100-SXM", "--no-oom", "-o", "run.tally"]
        runs = interleaved(
            {
                "its imports alone": lambda: spent_on([sys.executable, "-c", IMPORTS]),
                "tally run --steps 1": lambda: spent_on([*tally, "--steps", "1"], cwd=folder),
                "tally run (2 steps)": lambda: spent_on(tally, cwd=folder),
            },
            args.repeat,
        )
        trace_bytes = (folder / "run.tally").stat().st_size
    parts = interleaved({"parts": lambda: in_fresh_process(model.layers)}, args.repeat)["parts"]

    figures = {name: middle(samples) for name, samples in runs.items()}
    show(
        f"{model.name}: one AdamW step, as a user runs it (median of {args.repeat})",
        ("", "wall", "fastest", "CPU", "peak RSS"),
        [
            (
                name,
                seconds(figure.wall_s),
                seconds(min(run.wall_s for run in runs[name])),
                seconds(figure.cpu_s),
                megabytes(figure.peak_rss_bytes),
            )
            for name, figure in figures.items()
        ],
    )
    one = figures["tally run --steps 1"]
    print(
        f"  target {TARGET_WALL_S:g} s: {against(one.wall_s, TARGET_WALL_S)};"
        f" {megabytes(TARGET_PEAK_BYTES)}: {against(one.peak_rss_bytes, TARGET_PEAK_BYTES)};"
        f" trace file {megabytes(trace_bytes)}"
    )
    by_part = {
        name: middle(Spent(**part["parts"][name]) for part in parts) for name in parts[0]["parts"]
    }
    show(
        f"The same from Python, part by part (median of {args.repeat})",
        ("", "wall", "CPU"),
        [(name, seconds(spent.wall_s), seconds(spent.cpu_s)) for name, spent in by_part.items()],
    )
    print(
        f"  peak RSS {megabytes(max(part['peak_rss_bytes'] for part in parts))};"
        f" {parts[0]['operators']} operators, {parts[0]['flops']} FLOPs"
    )
    write(
        args.json,
        {
            "model": model.name,
            "target": {"wall_s": TARGET_WALL_S, "peak_rss_bytes": TARGET_PEAK_BYTES},
            "runs": {
                name: [
                    {
                        "wall_s": spent.wall_s,
                        "cpu_s": spent.cpu_s,
                        "peak_rss_bytes": spent.peak_rss_bytes,
                    }
                    for spent in samples
                ]
                for name, samples in runs.items()
            },
            "trace_file_bytes": trace_bytes,
            "from_python": parts,
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
