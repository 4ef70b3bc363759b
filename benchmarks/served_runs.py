"""Runs that `tally serve` answers beside the same runs by themselves, after random edits.

    python -m benchmarks.served_runs [--repeat 20] [--seed 0] [--json FILE]

Each edit of examples/train_gpt.py is run both ways; document, report and trace have to be the same,
without the seconds that this machine took. CPU time of a served run is the command's and its
fork's.
"""

import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.measuring import parser, write
from torchtally.runs.warm.client import connect, peer
from torchtally.runs.warm.identity import identity
from torchtally.trace import Trace

SCRIPT = Path(__file__).parents[1] / "examples" / "train_gpt.py"


def edited(text: str, chance: random.Random) -> str:
    """The script with one number changed, or one line left out or repeated."""
    lines = text.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    kind = chance.choice(("number", "number", "number", "omit", "repeat"))
    if kind == "number":
        places = list(re.finditer(r"(?<![\w.])\d+(?![\w.])", text))
        place = chance.choice(places)
        number = max(int(place[0]) // 2, 1) if chance.random() < 0.5 else int(place[0]) + 8
        return f"{text[: place.start()]}{number}{text[place.end() :]}"
    lines[at : at + 1] = [] if kind == "omit" else [lines[at], lines[at]]
    return "".join(lines)


def run(folder: Path, **variables: str) -> tuple[float, float, tuple[object, ...]]:
    """(wall, CPU time of the command in seconds, all that it left)."""
    for name in ("run.tally", "run.json"):
        (folder / name).unlink(missing_ok=True)
    started_s, before_s = time.perf_counter(), sum(os.times()[2:4])
    done = subprocess.run(
        [sys.executable, "-m", "torchtally", "run", "train.py", "--gpu", "H100-SXM",
         "--json", "run.json"],
        cwd=folder, env=os.environ | variables, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    wall_s, cpu_s = time.perf_counter() - started_s, sum(os.times()[2:4]) - before_s
    errors = re.sub(r", [\d.]+ (s|ms)$", "", done.stderr, flags=re.MULTILINE)
    files = folder / "run.json", folder / "run.tally"
    document = files[0].read_bytes() if files[0].exists() else b""
    facts = ""
    if files[1].exists():
        trace = Trace.load(str(files[1]))
        names = [name for name in trace.__struct_fields__ if name != "script_work"]
        facts = repr([getattr(trace, name) for name in names])
    return wall_s, cpu_s, (done.returncode, done.stdout, errors, document, facts)


def forks_s(server: int) -> float:
    """CPU time of a server's forks that have ended."""
    fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=20)
    options.add_argument("--seed", type=int, default=0, metavar="N", help="of the edits")
    args = options.parse_args(argv)
    os.environ.pop("TALLY_SERVE", None)
    subprocess.run([sys.executable, "-m", "torchtally", "serve"], check=True)
    connection = connect(identity())
    assert connection is not None
    server, _ = peer(connection)
    connection.close()
    chance, rows, differing = random.Random(args.seed), [], []
    with tempfile.TemporaryDirectory() as name:
        for count in range(args.repeat):
            text = edited(SCRIPT.read_text(), chance)
            (Path(name) / "train.py").write_text(text)
            before_s = forks_s(server)
            wall_s, cpu_s, warm = run(Path(name))
            fork_s = forks_s(server) - before_s
            assert fork_s, "the run was not served"
            cold_wall_s, cold_cpu_s, cold = run(Path(name), TALLY_SERVE="0")
            rows.append((wall_s, cpu_s + fork_s, cold_wall_s, cold_cpu_s))
            if warm != cold:
                differing.append(count)
    subprocess.run([sys.executable, "-m", "torchtally", "serve", "--stop"], check=True)
    medians = [median(column) for column in zip(*rows, strict=True)]
    print(f"{len(rows)} edits, of which differ: {differing or 'none'}")
    print("served: wall {:.2f} s, CPU {:.2f} s; by itself: {:.2f} s, {:.2f} s".format(*medians))
    write(args.json, {"rows": rows, "differing": differing})
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
