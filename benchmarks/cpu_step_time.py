"""Predicted time of a training step on this CPU beside the measured one, in one run.

    python -m benchmarks.cpu_step_time                  measure the machine, then every model
    python -m benchmarks.cpu_step_time --models "gpt2;lstm" --operators
    python -m benchmarks.cpu_step_time --calibration FOLDER    with what `tally bench` kept there

First the machine is measured, as `tally bench --device cpu` does. Then each model trains for real,
in a process of its own, and the same training is traced on the CPU as a simulated chip, and
predicted. No figure of a model goes into its prediction. Target: 15 % off in the median. Of steps,
as of operators, the median of the faster half counts; the median of all stands beside it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import parser, show, write
from torchtally.bench.stopwatch import undisturbed_s

Step = Callable[[], None]
LIMIT = 0.15
WARM_UPS = 3
LEAST_STEPS = 7


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and how it trains: builds both on a device, and gives the body of the loop."""

    name: str
    train: Callable[[Any], Step]


def loop(model: Any, optimizer: Any, loss: Callable[[Any], Any]) -> Step:
    def step() -> None:
        loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def language_model(kind: str, config: str, batch: int, sequence: int, **sizes: Any) -> Any:
    """A transformers model on random tokens, with AdamW."""

    def train(device: Any) -> Step:
        import torch
        import transformers

        model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        ids = torch.randint(0, 1000, (batch, sequence)).to(device)
        return loop(model.train(), optimizer, lambda model: model(input_ids=ids, labels=ids).loss)

    return train


def image_model(kind: str, config: str, batch: int, **sizes: Any) -> Any:
    """A transformers model on random images, with SGD and momentum."""

    def train(device: Any) -> Step:
        import torch
        import transformers

        model = getattr(transformers, kind)(getattr(transformers, config)(**sizes)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        images = torch.rand(batch, 3, 224, 224).to(device)
        labels = torch.randint(0, 2, (batch,)).to(device)
        return loop(model.train(), optimizer, lambda model: model(images, labels=labels).loss)

    return train


def perceptron(width: int, layers: int, batch: int) -> Any:
    """Linear layers and GELU, plain SGD."""

    def train(device: Any) -> Step:
        import torch
        from torch import nn

        blocks = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
        model = nn.Sequential(*blocks, nn.Linear(width, 1)).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.rand(batch, width).to(device)
        return loop(model, optimizer, lambda model: model(inputs).square().mean())

    return train


def recurrent(width: int, layers: int, batch: int, sequence: int) -> Any:
    """An LSTM between an embedding and a head, with Adam."""

    def train(device: Any) -> Step:
        import torch
        from torch import nn

        class Tagger(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = nn.Embedding(1000, width)
                self.lstm = nn.LSTM(width, width, layers, batch_first=True)
                self.head = nn.Linear(width, 1000)

            def forward(self, ids: Any) -> Any:
                return self.head(self.lstm(self.embedding(ids))[0])

        model = Tagger().to(device)
        optimizer = torch.optim.Adam(model.parameters())
        ids = torch.randint(0, 1000, (batch, sequence)).to(device)

        def loss(value: Any) -> Any:
            return nn.functional.cross_entropy(value(ids).flatten(0, 1), ids.flatten())

        return loop(model, optimizer, loss)

    return train


def encoder(width: int, layers: int, batch: int, sequence: int) -> Any:
    """torch's own TransformerEncoder, dropout included, with AdamW."""

    def train(device: Any) -> Step:
        import torch
        from torch import nn

        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
        optimizer = torch.optim.AdamW(model.parameters())
        inputs = torch.rand(batch, sequence, width).to(device)
        return loop(model.train(), optimizer, lambda model: model(inputs).square().mean())

    return train


WORKLOADS = (
    Workload("gpt2", language_model(
        "GPT2LMHeadModel", "GPT2Config", 4, 256, vocab_size=8192, n_embd=384, n_layer=6, n_head=6,
        n_positions=256,
    )),
    Workload("llama", language_model(
        "LlamaForCausalLM", "LlamaConfig", 4, 256, vocab_size=8192, hidden_size=384,
        intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=2,
    )),
    Workload("bert", language_model(
        "BertForMaskedLM", "BertConfig", 8, 128, vocab_size=8192, hidden_size=384,
        intermediate_size=1536, num_hidden_layers=6, num_attention_heads=6,
    )),
    Workload("t5", language_model(
        "T5ForConditionalGeneration", "T5Config", 8, 128, vocab_size=4096, d_model=256, d_kv=64,
        d_ff=1024, num_layers=3, num_heads=4, decoder_start_token_id=0,
    )),
    Workload("vit", image_model(
        "ViTForImageClassification", "ViTConfig", 8, hidden_size=384, num_hidden_layers=6,
        num_attention_heads=6, intermediate_size=1536,
    )),
    Workload("resnet", image_model(
        "ResNetForImageClassification", "ResNetConfig", 4, depths=[2, 2, 2, 2],
    )),
    Workload("perceptron", perceptron(1024, 8, 512)),
    Workload("perceptron, small", perceptron(64, 8, 32)),
    Workload("lstm", recurrent(256, 2, 16, 64)),
    Workload("encoder", encoder(256, 4, 8, 128)),
    Workload("encoder, small", encoder(64, 2, 4, 16)),
)  # fmt: skip


def workload(name: str) -> Workload:
    return next(workload for workload in WORKLOADS if workload.name == name)


def measured_steps_s(workload: Workload, seconds: float) -> list[float]:
    """Seconds of each step on the CPU, after a warm-up, for so many seconds."""
    import torch

    step = workload.train(torch.device("cpu"))
    for _ in range(WARM_UPS):
        step()
    steps_s: list[float] = []
    while len(steps_s) < LEAST_STEPS or sum(steps_s) < seconds:
        started_s = time.perf_counter()
        step()
        steps_s.append(time.perf_counter() - started_s)
    return steps_s


def measured_operators_s(workload: Workload) -> dict[str, float]:
    """Seconds of one step by operator, as torch's profiler has them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    step = workload.train(torch.device("cpu"))
    for _ in range(WARM_UPS):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    return {
        row.key.replace("::", "."): row.self_cpu_time_total / 1e6 for row in profiler.key_averages()
    }


def predicted(workload: Workload) -> dict[str, Any]:
    """The second step, traced on the CPU as a chip and timed by its calibration."""
    import torch

    from torchtally.ledger import account
    from torchtally.timing.targets import roofline
    from torchtally.trace import Ending
    from torchtally.tracer.session import recording

    cpu = roofline("cpu")
    with recording(cpu.chip, script=workload.name) as session:
        step = workload.train(torch.device("cuda"))
        for _ in range(2):
            step()
        ledger = account(session.trace(Ending("exit")), roofline=cpu)
    ledger.check()
    kernels: Counter[str] = Counter()
    for entry in ledger.reported:
        kernels[entry.call.name] += ledger.slot(entry).kernel_s
    slots = map(ledger.slot, ledger.reported)
    calibrated_s = sum(slot.kernel_s for slot in slots if slot.is_calibrated)
    return {
        "step_s": ledger.step_s,
        "kernel_s": ledger.total.kernel_s,
        "calibrated_share": calibrated_s / ledger.total.kernel_s,
        "operators": ledger.total.count,
        "uncounted": [uncounted.op for uncounted in ledger.coverage.uncounted],
        "by_operator_s": dict(kernels.most_common()),
    }


def in_child(job: str, name: str, environment: dict[str, str], seconds: float = 0.0) -> Any:
    command = [sys.executable, "-m", "benchmarks.cpu_step_time", "--job", job, "--models", name,
               "--seconds", str(seconds)]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name}: {job} failed")
    return json.loads(done.stdout.splitlines()[-1])


JOBS: dict[str, Callable[[Workload, float], Any]] = {
    "measure": measured_steps_s,
    "profile": lambda workload, seconds: measured_operators_s(workload),
    "predict": lambda workload, seconds: predicted(workload),
}


def calibrate(folder: Path, *, is_quick: bool) -> float:
    """As `tally bench` does, into a folder of its own."""
    started_s = time.perf_counter()
    quickly = ["--quick"] if is_quick else []
    subprocess.run(
        [sys.executable, "-m", "torchtally", "bench", "--device", "cpu", *quickly],
        env={**os.environ, "TALLY_CALIBRATIONS": str(folder)}, stdout=subprocess.DEVNULL,
        check=True,
    )  # fmt: skip
    return time.perf_counter() - started_s


HEADER = ("model", "measured ms", "range", "median", "predicted ms", "error", "calibrated")


def rows_of(records: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for record in records:
        low, middle, high = record["fastest_s"], record["measured_s"], record["slowest_s"]
        rows.append([
            record["name"], f"{middle * 1e3:.1f}", f"{low * 1e3:.1f}-{high * 1e3:.1f}",
            f"{record['median_s'] * 1e3:.1f}", f"{record['predicted_s'] * 1e3:.1f}",
            f"{record['error'] * 100:+.1f} %",
            f"{record['calibrated_share'] * 100:.0f} %",
        ])  # fmt: skip
    return rows


def compared(workload: Workload, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    """Measured, predicted, and measured again: a machine that changed in between shows."""
    steps_s = in_child("measure", workload.name, environment, seconds)
    prediction = in_child("predict", workload.name, environment)
    steps_s += in_child("measure", workload.name, environment, seconds)
    measured_s = undisturbed_s(steps_s)
    return {
        "name": workload.name,
        "measured_s": measured_s,
        "median_s": median(steps_s),
        "fastest_s": min(steps_s),
        "slowest_s": max(steps_s),
        "steps": len(steps_s),
        "predicted_s": prediction["step_s"],
        "error": prediction["step_s"] / measured_s - 1,
        "calibrated_share": prediction["calibrated_share"],
        "by_operator_s": prediction["by_operator_s"],
    }


def show_operators(record: dict[str, Any], environment: dict[str, str]) -> None:
    """Where the time goes, predicted beside profiled: for finding what a model gets wrong."""
    profile_record = in_child("profile", record["name"], environment)
    names = sorted(
        record["by_operator_s"],
        key=lambda n: -max(record["by_operator_s"][n], profile_record.get(n, 0)),
    )
    rows = [
        [
            name,
            f"{record['by_operator_s'][name] * 1e3:.2f}",
            f"{profile_record.get(name, 0.0) * 1e3:.2f}",
        ]
        for name in names[:14]
    ]
    show(record["name"], ["operator", "predicted ms", "profiled ms"], rows)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--models", metavar="NAMES", help="only these, separated by semicolons")
    options.add_argument(
        "--calibration", metavar="FOLDER", help="one made before: not measured again"
    )
    options.add_argument("--quick", action="store_true", help="measure the machine roughly")
    options.add_argument("--operators", action="store_true", help="by operator, too")
    options.add_argument("--seconds", type=float, default=4.0, metavar="S",
                      help="measure steps for so long, before and after (default 4)")  # fmt: skip
    options.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    args = options.parse_args()
    chosen = [workload(word) for word in args.models.split(";")] if args.models else list(WORKLOADS)
    if args.job:
        print(json.dumps(JOBS[args.job](chosen[0], args.seconds)))
        return
    with tempfile.TemporaryDirectory() as new_folder:
        folder = Path(args.calibration or new_folder)
        bench_s = 0.0 if args.calibration else calibrate(folder, is_quick=args.quick)
        environment = {"TALLY_CALIBRATIONS": str(folder)}
        records = []
        for job in chosen:
            records.append(compared(job, environment, args.seconds))
            show("", HEADER,
                 rows_of(records[-1:]))  # fmt: skip
            if args.operators:
                show_operators(records[-1], environment)
    show(f"Training steps on this CPU; tally bench took {bench_s:.0f} s",
         HEADER,
         rows_of(records))  # fmt: skip
    error = median(abs(record["error"]) for record in records)
    verdict = "met" if error <= LIMIT else "missed"
    print(
        f"\nmedian error {error * 100:.1f} % of {len(records)} models; "
        f"target {LIMIT * 100:.0f} %: {verdict}"
    )
    write(args.json, {"bench_s": bench_s, "models": records, "median_error": error})


if __name__ == "__main__":
    main()
