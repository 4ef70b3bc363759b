"""Three other chips beside the traced one, from the trace of a Llama-3-70B step, without torch.

`tally show run.tally --gpu A100-SXM --gpu RTX-4090 --gpu H200`: target 1 s. Beside it, in the same
minutes, the page about the trace alone.

    python -m benchmarks.compare_chips [--repeat 9] [--trace FILE] [--layers 80] [--json FILE]
"""

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
from benchmarks.start_up import make_trace

CHIPS = ("A100-SXM", "RTX-4090", "H200")
TARGET_WALL_S = 1.0
COMPARED = "three other chips"


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=9)
    options.add_argument("--trace", metavar="FILE", help="a trace to show, instead of making one")
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    options.add_argument("--steps", type=int, default=1, metavar="N", help="steps in the trace")
    args = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        trace = Path(args.trace or make_trace(Path(name), args.layers, args.steps)).resolve()
        trace_bytes = trace.stat().st_size
        page = [TALLY, "show", str(trace)]
        others = [option for chip in CHIPS for option in ("--gpu", chip)]
        runs = interleaved(
            {
                "python -c pass": lambda: spent_on([sys.executable, "-c", "pass"]),
                "the page": lambda: spent_on(page),
                "one other chip": lambda: spent_on([*page, *others[:2]]),
                COMPARED: lambda: spent_on([*page, *others]),
            },
            args.repeat,
        )
    figures = {name: middle(samples) for name, samples in runs.items()}
    show(
        f"Chips compared, median of {args.repeat}; the trace is {megabytes(trace_bytes)}",
        ("", "wall", "fastest", "CPU", "peak RSS"),
        [
            (
                name,
                milliseconds(figure.wall_s),
                milliseconds(min(run.wall_s for run in runs[name])),
                milliseconds(figure.cpu_s),
                megabytes(figure.peak_rss_bytes),
            )
            for name, figure in figures.items()
        ],
    )
    wall_s = figures[COMPARED].wall_s
    print(f"  target {milliseconds(TARGET_WALL_S)}: {against(wall_s, TARGET_WALL_S)}")
    write(
        args.json,
        {
            "trace_file_bytes": trace_bytes,
            "target_wall_s": TARGET_WALL_S,
            "runs": {
                name: [{"wall_s": spent.wall_s, "cpu_s": spent.cpu_s} for spent in samples]
                for name, samples in runs.items()
            },
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
