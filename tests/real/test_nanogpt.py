"""nanoGPT's train.py, which nobody here wrote, unmodified under `tally run`.

Not part of this repository: give the path of a checkout (github.com/karpathy/nanoGPT) that has
`data/openwebtext/train.bin` and `val.bin` in the variable NANOGPT. Any uint16 tokens will do.

B: batch.  S: sequence.  T = B*S tokens.  d: width.  V: vocabulary.  L: layers.  A: micro-batches.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.warm import TALLY, warm
from torchtally.trace.storage import allocated_bytes

CHECKOUT = Path(os.environ.get("NANOGPT", ""))

pytestmark = pytest.mark.skipif(
    "NANOGPT" not in os.environ or not (CHECKOUT / "train.py").is_file(),
    reason="needs a checkout of nanoGPT with prepared data: set NANOGPT to its path",
)

B, S, d, V, L = 12, 1024, 768, 50304, 12
T = B * S

WEIGHTS = 12 * L * d * d + V * d
"""Elements of the matrices that every token meets: four d*d of attention, eight of the MLP."""
FORWARD = 2 * T * WEIGHTS + L * 4 * B * S * S * d
BACKWARD = 4 * T * WEIGHTS + L * 10 * B * S * S * d

MATRICES = [V * d, S * d, *L * [3 * d * d, d * d, 4 * d * d, 4 * d * d]]
NORMS = (2 * L + 1) * [d]
PARAMETERS = sum(MATRICES) + sum(NORMS)
PARAMETER_BYTES = sum(allocated_bytes(4 * n) for n in MATRICES + NORMS)


def tally_run(folder: Path, *arguments: str) -> dict[str, Any]:
    command = [
        *warm(TALLY), "run", "train.py", "--gpu", "H100-SXM",
        "--steps", "2", "-o", str(folder / "run.tally"), "--json", str(folder / "report.json"),
        f"--out_dir={folder / 'out'}", "--eval_iters=1", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


@pytest.mark.parametrize(
    ("arguments", "micro_batches"),
    [
        ((), 40),
        (("--gradient_accumulation_steps=1",), 1),
        (("--gradient_accumulation_steps=1", "--dropout=0.1"), 1),
        (("--gradient_accumulation_steps=1", "--dtype=float16"), 1),
        (("--gradient_accumulation_steps=3", "--compile=False"), 3),
        (("--gradient_accumulation_steps=1", "--compile=True"), 1),
    ],
    ids=["default", "one micro-batch", "dropout", "float16", "eager", "compile"],
)
def test_a_step_of_gpt2_costs_its_closed_form(
    tmp_path: Path, arguments: tuple[str, ...], micro_batches: int
) -> None:
    report = tally_run(tmp_path, *arguments)
    assert (report["ending"]["kind"], report["steps"]) == ("steps", 2)
    assert report["coverage"]["uncounted"] == []
    assert report["parameters"] == PARAMETERS == 124_373_760
    A = micro_batches
    assert report["totals"]["flops_matmul"] == A * (FORWARD + BACKWARD)
    at_peak = report["memory"]["at_peak"]
    assert at_peak["parameters"] == PARAMETER_BYTES
    counters = len(MATRICES + NORMS) * allocated_bytes(4)  # fused AdamW's, on the device
    assert at_peak["optimizer_state"] == 2 * PARAMETER_BYTES + counters
    assert sum(at_peak.values()) == report["memory"]["peak_allocated_bytes"]
    attention = {op["operator"] for op in report["ops"] if "scaled_dot_product" in op["operator"]}
    assert len(attention) == 2  # forward and backward of one fused kernel
    ran_eagerly = any(note["text"].startswith("torch.compile") for note in report["notes"])
    assert ran_eagerly == ("--compile=False" not in arguments)
    products = [line for line in report["lines"] if line["source"].startswith("x = self.c_fc(x)")]
    assert [product["flops_forward"] for product in products] == [A * L * 2 * T * 4 * d * d]


def test_the_bench_prints_what_the_report_says(tmp_path: Path) -> None:
    """By its own clock, and by its own formula for MFU, which takes an A100."""
    out = tmp_path / "report.json"
    done = subprocess.run(
        [*warm(TALLY), "run", "bench.py", "--gpu", "A100-SXM-40GB", "--steps", "50", "--quiet",
         "-o", str(tmp_path / "run.tally"), "--json", str(out), "--compile=False",
         "--real_data=False"],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    printed = re.search(r"time per iteration: ([\d.]+)ms, MFU: ([\d.]+)%", done.stdout)
    assert printed is not None
    report = json.loads(out.read_text())
    assert float(printed[1]) == pytest.approx(1e3 * report["time"]["step_s"], rel=1e-3)
    mfu = next(each for each in report["utilisation"] if each["name"].startswith("MFU"))
    assert float(printed[2]) == pytest.approx(100 * mfu["peak_share"], rel=0.01)
