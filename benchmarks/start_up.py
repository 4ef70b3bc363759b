"""How long one waits for a command that runs no script, beside Python's own start.

`tally --help`: target 150 ms. `tally show` of the trace of a Llama-3-70B step: target 1 s. Its
interactive page by `tally report`: target 3 s.

    python -m benchmarks.start_up [--repeat 15] [--trace FILE] [--layers 80] [--json FILE]
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import (
    TALLY,
    against,
    interleaved,
    megabytes,
    middle,
    milliseconds,
    parser,
    show,
    spent_on,
    write,
)
from benchmarks.models import LLAMA_70B

TARGETS_S = {"tally --help": 0.150, "tally show": 1.0, "tally show --by line": 1.0,
             "tally report": 3.0}  # fmt: skip


def make_trace(folder: Path, layers: int | None, steps: int) -> Path:
    (folder / "train.py").write_text(LLAMA_70B.with_layers(layers).script())
    command = [TALLY, "run", "train.py", "--gpu", "H100-SXM", "-o", "run.tally",
               "--steps", str(steps), "--no-oom", "--quiet"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True)
    return folder / "run.tally"


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=15)
    options.add_argument("--trace", metavar="FILE", help="a trace to show, instead of making one")
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    options.add_argument("--steps", type=int, default=1, metavar="N", help="steps in the trace")
    args = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        trace = Path(args.trace or make_trace(Path(name), args.layers, args.steps)).resolve()
        trace_bytes = trace.stat().st_size
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "tally --help": [TALLY, "--help"],
            "tally gpus": [TALLY, "gpus"],
            "tally show": [TALLY, "show", str(trace)],
            "tally show --by line": [TALLY, "show", str(trace), "--by", "line"],
            "tally show --json": [TALLY, "show", str(trace), "--json"],
            "tally report": [TALLY, "report", str(trace), "-o", f"{name}/run.html"],
        }
        runs = interleaved(
            {name: lambda command=command: spent_on(command) for name, command in commands.items()},
            args.repeat,
        )
    figures = {name: middle(samples) for name, samples in runs.items()}
    fastest = {name: min(start.wall_s for start in samples) for name, samples in runs.items()}
    show(
        f"Start-up, median of {args.repeat}; the trace is {megabytes(trace_bytes)}",
        ("", "wall", "fastest", "CPU", "peak RSS", "target"),
        [
            (
                name,
                milliseconds(figure.wall_s),
                milliseconds(fastest[name]),
                milliseconds(figure.cpu_s),
                megabytes(figure.peak_rss_bytes),
                f"{milliseconds(TARGETS_S[name])}: {against(figure.wall_s, TARGETS_S[name])}"
                if name in TARGETS_S
                else "",
            )
            for name, figure in figures.items()
        ],
    )
    write(
        args.json,
        {
            "trace_file_bytes": trace_bytes,
            "targets_s": TARGETS_S,
            "runs": {
                name: [{"wall_s": start.wall_s, "cpu_s": start.cpu_s} for start in samples]
                for name, samples in runs.items()
            },
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
