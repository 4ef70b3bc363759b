"""`tally fit` on nanoGPT's train.py with its own defaults: how long until the batch size is known.

Its defaults make the largest part of a run: 400 evaluation passes before the first step, 40
micro-batches a step. Target: 60 s on two cores. Needs a checkout (github.com/karpathy/nanoGPT)
with `data/openwebtext/train.bin` and `val.bin` (any uint16 tokens) in the variable NANOGPT.

    NANOGPT=DIR python -m benchmarks.fit_nanogpt [--repeat 3] [--gpu H100-SXM] [--json FILE]
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import TALLY, against, parser, seconds, show, write

TARGET_WALL_S = 60.0


def fit(checkout: Path, gpu: str, report: Path, *options: str) -> dict[str, Any]:
    """One search in processes of its own. CPU time is that of all of them."""
    before, started_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [TALLY, "fit", "train.py", "--vary", "--batch_size={}", "--gpu", gpu,
               "--json", str(report), "--quiet", *options,
               "--", f"--out_dir={report.parent / 'out'}"]  # fmt: skip
    subprocess.run(command, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    wall_s = time.perf_counter() - started_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    report_json = json.loads(report.read_text())
    return {
        "wall_s": wall_s,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "largest": report_json["chips"][0]["largest"],
        "runs": len(report_json["runs"]),
    }


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--gpu", default="H100-SXM", metavar="NAME")
    args = options.parse_args(argv)
    if "NANOGPT" not in os.environ:
        raise SystemExit("Set NANOGPT to a checkout of nanoGPT with prepared data.")
    checkout = Path(os.environ["NANOGPT"]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "fit.json"
        fits = [fit(checkout, args.gpu, report) for _ in range(args.repeat)]
    wall_s = median(fit["wall_s"] for fit in fits)
    show(
        f"tally fit, nanoGPT's train.py on {args.gpu}, each of {args.repeat}",
        ("", "wall", "CPU", "runs", "largest batch_size"),
        [
            (str(at), seconds(fit["wall_s"]), seconds(fit["cpu_s"]), str(fit["runs"]),
             str(fit["largest"]))
            for at, fit in enumerate(fits, 1)
        ],
    )  # fmt: skip
    print(
        f"  target {TARGET_WALL_S:g} s: median {seconds(wall_s)}, {against(wall_s, TARGET_WALL_S)}"
    )
    write(args.json, {"target_s": TARGET_WALL_S, "searches": fits})
    return 0


if __name__ == "__main__":
    sys.exit(main())
