"""What is drawn on a terminal: `tally view` until its first page stands, and `tally run --watch`.

The trace is of ten steps of Llama-3-70B, some 195,000 operators; target 2 s. `--watch` is held
against the same run with its line of progress, on a terminal like it; target 5 % of the CPU time.

    python -m benchmarks.full_screen [--repeat 5] [--layers 80] [--steps 10] [--json FILE]
"""

import fcntl
import os
import pty
import select
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measuring import (
    TALLY,
    Spent,
    against,
    interleaved,
    middle,
    parser,
    seconds,
    show,
    write,
)
from benchmarks.models import LLAMA_70B
from benchmarks.start_up import make_trace

TARGET_OPEN_S = 2.0
TARGET_SHARE = 0.05
COLUMNS, ROWS = 160, 50
TIMEOUT_S = 600.0
FIRST_PAGE = b"Most is allocated in"
"""Of the report that the viewer begins with."""


def on_terminal(
    command: Sequence[str], cwd: Path, *, until: bytes = b"", stdout: Path | None = None
) -> Spent:
    """A command on a terminal of its own: until it has drawn `until`, or to its end."""
    started = time.perf_counter()
    process, terminal = pty.fork()
    if not process:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.environ["TERM"] = "xterm-256color"
        os.chdir(cwd)
        if stdout is not None:
            os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.execv(command[0], list(command))
    drawn, wall_s = b"", 0.0
    while time.perf_counter() - started < TIMEOUT_S:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            drawn += os.read(terminal, 1 << 16)
        except OSError:  # the process has closed its end
            break
        if until and until in drawn and not wall_s:
            wall_s = time.perf_counter() - started
            os.write(terminal, b"q")
    _, status, usage = os.wait4(process, 0)
    os.close(terminal)
    if os.waitstatus_to_exitcode(status) or (until and not wall_s):
        raise SystemExit(f"{' '.join(command)} failed:\n{drawn[-2000:].decode(errors='replace')}")
    wall_s = wall_s or time.perf_counter() - started
    return Spent(wall_s, usage.ru_utime + usage.ru_stime)


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    options.add_argument("--steps", type=int, default=10, metavar="N", help="of the trace")
    args = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = make_trace(folder, args.layers, args.steps)
        view = [TALLY, "view", trace.name]
        run = [TALLY, "run", "train.py", "--gpu", "H100-SXM", "--no-oom", "-o", "again.tally"]
        # With stdout in a file, as of a script whose output is kept: no viewer follows the report.
        output = folder / "output.txt"
        runs = interleaved(
            {
                "tally view": lambda: on_terminal(view, folder, until=FIRST_PAGE),
                "tally run": lambda: on_terminal(run, folder, stdout=output),
                "tally run --watch": lambda: on_terminal([*run, "--watch"], folder, stdout=output),
            },
            args.repeat,
        )
    figures = {name: middle(samples) for name, samples in runs.items()}
    show(
        f"On a terminal, {LLAMA_70B.with_layers(args.layers).name} (median of {args.repeat})",
        ("", "wall", "CPU"),
        [(name, seconds(each.wall_s), seconds(each.cpu_s)) for name, each in figures.items()],
    )
    share = figures["tally run --watch"].cpu_s / figures["tally run"].cpu_s - 1
    print(
        f"  the first page: target {TARGET_OPEN_S:g} s: "
        f"{against(figures['tally view'].wall_s, TARGET_OPEN_S)}; --watch takes {share:+.1%} of "
        f"the CPU time, target {TARGET_SHARE:.0%}: {against(share, TARGET_SHARE)}"
    )
    write(
        args.json,
        {
            "target": {"open_s": TARGET_OPEN_S, "watch_share": TARGET_SHARE},
            "watch_share": share,
            "runs": {
                name: [{"wall_s": run.wall_s, "cpu_s": run.cpu_s} for run in samples]
                for name, samples in runs.items()
            },
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
