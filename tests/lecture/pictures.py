"""The pictures of docs/lecture, each drawn from figures that torchtally computes.

A picture is drawn in the folder of its page, after the page's commands have left their traces.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.nn.functional as F

import torchtally
from tests.lecture.charts import bars, cells, curves, stacks
from torchtally.ledger import Ledger, account
from torchtally.number_formats import FORMATS
from torchtally.plan.architecture.lookup import model
from torchtally.plan.flops import token_flops
from torchtally.plan.optimizers import optimizer
from torchtally.plan.quantity import of
from torchtally.plan.recipes import RECIPES
from torchtally.table import Table
from torchtally.trace.strided import StridedTensor
from torchtally.units import Unit, format_bytes

MIB, GIB = 1024**2, 1024**3


def tables(command: str) -> dict[str, Table]:
    """What a command prints."""
    return dict(torchtally.tally(command).tables)


def ledger_of(trace: Path) -> Ledger:
    loaded = torchtally.Trace.load(trace)
    return account(loaded, roofline=torchtally.roofline(loaded.chip))


def napkin_days(folder: Path) -> str:
    line = []
    for percent in range(20, 81, 5):
        plan = f"plan --parameters 70B --tokens 15T --gpus 1024xH100-SXM --mfu {percent}%"
        days = tables(plan)["figures"].column("value")[0]
        line.append((float(percent), float(str(days).removesuffix(" days"))))
    return curves("70 B parameters, 15 T tokens, 1024 H100", {"": line}, "MFU in %", "days")


def format_bits(folder: Path) -> str:
    rows = {}
    for name in ("fp32", "tf32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1", "int8"):
        widths = FORMATS[name].layout.widths
        parts = zip("sem" if len(widths) == 3 else "i", range(3), widths, strict=False)
        rows[name] = [(letter, colour) for letter, colour, width in parts for _ in range(width)]
    return cells(f"Bits of {len(rows)} formats: sign, exponent, mantissa; i of an integer", rows)


def matrix_bytes(folder: Path) -> str:
    rows = {}
    for name in ("fp64", "fp32", "bf16", "fp8_e4m3", "mxfp8_e4m3", "nvfp4", "int4"):
        size = 49152 * 12288 * FORMATS[name].bits_per_number / 8
        rows[name] = size, format_bytes(round(size))
    return bars("GPT-3's 49152 x 12288 matrix", rows)


def views(folder: Path) -> str:
    """Each element at its place, by the formula that `tally tensor` prints."""
    whole = (3, 4), (4, 1), 0
    tensors = {
        "x": whole,
        "x[1]": ((4,), (1,), 4),
        "x[:, 1]": ((3,), (4,), 1),
        "x.T[1:]": ((3, 3), (1, 4), 1),
        "x.view(6, 2)[:, 0]": ((6,), (2,), 0),
    }
    rows = {}
    for name, (shape, strides, offset) in tensors.items():
        tensor = StridedTensor(shape, strides, offset, "float32", 4, 0, 48)
        used = {tensor.place(index) for index in tensor.indices()}
        rows[name] = [(str(place), 0 if place in used else None) for place in range(12)]
    return cells("Places of the storage of x = torch.arange(12.).view(3, 4)", rows)


def dimensions(folder: Path) -> str:
    table = torchtally.by(ledger_of(folder / "run.tally"), "dimension")
    rows = {}
    for size, text in zip(table.column("bytes"), table.column("dimensions"), strict=True):
        assert isinstance(size, int)
        rows[str(text)] = float(size), format_bytes(size)
    return bars("Tensors by their named dimensions", rows)


def operator_flops(folder: Path) -> str:
    table = torchtally.by(ledger_of(folder / "run.tally"), "line")
    rows = {}
    for source, flops in zip(table.column("source"), table.column("flops_forward"), strict=True):
        if isinstance(flops, int) and flops:
            expression = str(source).partition(" = ")[2].partition("(D, ")[0]
            rows[expression] = float(flops), f"{flops:.3g}"
    return bars("FLOPs, on a logarithmic scale", rows, is_log=True)


def matmul_speed(folder: Path) -> str:
    rows, chip = {}, torchtally.chip("H100-SXM")
    for line in (folder / "speeds.txt").read_text().splitlines():
        dtype, achieved = line.split()[:2]  # as the script printed them
        promised = chip.peak_flop_per_s(dtype)
        rows[f"{dtype}, achieved"] = float(achieved), f"{achieved} TFLOP/s"
        rows[f"{dtype}, promised"] = promised / 1e12, f"{promised / 1e12:.1f} TFLOP/s"
    return bars("16384 x 32768 times 32768 x 8192 on an H100, predicted", rows)


def two_layers(folder: Path) -> str:
    table = torchtally.by(ledger_of(folder / "two_layers.tally"), "line")
    columns = map(table.column, ("source", "flops_forward", "flops_backward"))
    rows: dict[str, dict[str, float]] = {"forward": {}, "backward, by the rule": {}, "backward": {}}
    for source, forward, backward in zip(*columns, strict=True):
        if source in ("h1 = x @ w1", "h2 = h1 @ w2"):
            assert isinstance(forward, int)
            assert isinstance(backward, int)
            rows["forward"][str(source)] = round(forward / 1e12, 1)
            rows["backward, by the rule"][str(source)] = round(2 * forward / 1e12, 1)
            rows["backward"][str(source)] = round(backward / 1e12, 1)
    return stacks("Products of the two-layer model", rows, "TFLOPs")


def initialisation(folder: Path) -> str:
    torch.manual_seed(0)
    plain, scaled = [], []
    for inputs in range(512, 16385, 512):
        output = torch.randn(inputs) @ torch.randn(inputs, 256)
        size = output.square().mean().sqrt().item()
        plain.append((float(inputs), size))
        scaled.append((float(inputs), size / math.sqrt(inputs)))
    lines = {"randn": plain, "randn / sqrt(inputs)": scaled}
    return curves("x @ w", lines, "inputs", "root mean square", across_step=4096)


def overlap(folder: Path) -> str:
    table = torchtally.by(ledger_of(folder / "run.tally"), "line")
    lines = dict(zip(table.column("source"), table.column("seconds"), strict=True))
    copy, product = (
        next(seconds for text, seconds in lines.items() if part in str(text))
        for part in ("pinned.to", "w @ w")
    )
    assert isinstance(copy, float)
    assert isinstance(product, float)
    rows = {"copy": copy, "three products": product, "one after the other": copy + product,
            "beside each other": max(copy, product)}  # fmt: skip
    return bars(
        "A batch of 8 MiB is copied while products run",
        {name: (seconds, f"{seconds * 1e6:.1f} us") for name, seconds in rows.items()},
    )


def optimizer_state(folder: Path) -> str:
    names = ("sgd", "momentum", "adagrad", "rmsprop", "adamw")
    rows = {}
    for name in names:
        moments = optimizer(name).moments
        rows[name] = float(4 * (moments or 0)), f"{4 * (moments or 0)} bytes a parameter"
    return bars("State in fp32", rows)


def deep_linear_model(folder: Path) -> str:
    P, activations = 36, 16
    table = torchtally.by(ledger_of(folder / "run.tally"), "peak-storage")
    held: dict[str, float] = {}
    for category, size in zip(table.column("category"), table.column("bytes"), strict=True):
        assert isinstance(size, int)
        if size < MIB:  # without cuBLAS's workspaces
            held[str(category)] = held.get(str(category), 0) + size
    asked = {"parameters": 4 * P, "optimizer state": 4 * P, "gradients": 4 * P,
             "activations": 4 * activations}  # fmt: skip
    rows = {"the lecture's sum": asked, "at the run's peak": held}
    return stacks("D = 4, two layers, B = 2, AdaGrad; without workspaces", rows, "bytes")


def teacher_distance(folder: Path) -> str:
    lines = {}
    for lr in (0.01, 0.1):
        torch.manual_seed(0)
        w = torch.nn.Parameter(torch.randn(16) / 4)
        teacher, sgd = torch.arange(16.0), torch.optim.SGD([w], lr=lr)
        line = []
        for step in range(10):
            x = torch.randn(4, 16)
            F.mse_loss(x @ w, x @ teacher).backward()  # type: ignore[no-untyped-call]
            sgd.step()
            sgd.zero_grad()
            line.append((step + 1.0, (w - teacher).norm().item()))
        lines[f"lr {lr}"] = line
    return curves("Training with two learning rates", lines, "step",
                  "distance of the weights from the teacher's")  # fmt: skip


def checkpoint_bytes(folder: Path) -> str:
    parts = dict.fromkeys(("weights", "first moments", "second moments"), 4 * 70.0)
    rows = {"weights alone": {"weights": parts["weights"]}, "to resume": parts}
    return stacks("70 B parameters in fp32 with AdamW", rows, "GB")


def recipes(folder: Path) -> str:
    rows = {}
    for name in ("fp32", "amp", "mixed", "bf16"):
        recipe = RECIPES[name]
        rows[name] = {
            "weights": recipe.weight_bytes,
            "gradients": recipe.gradient_bytes,
            "master weights": recipe.master_bytes,
            "two moments": 2 * recipe.state_bytes,
        }
    return stacks("Bytes for each parameter, AdamW", rows, "bytes")


def weight_formats(folder: Path) -> str:
    rows = {}
    for name in ("fp32", "bf16", "fp8", "int8", "nf4", "int4"):
        answer = tables(f"plan llama-3-8b --inference --context 1K --weights {name}")
        size = answer["Weights, by format"].column("bytes")[0]
        assert isinstance(size, int)
        rows[name] = float(size), format_bytes(size)
    return bars("Weights of Llama 3 8B, scales and embedding included", rows)


def attention_share(folder: Path) -> str:
    lines = {}
    for name, title in (("gpt2", "GPT-2 124M"), ("llama-3-8b", "Llama 3 8B")):
        line = []
        for sequence in range(512, 16385, 512):
            flops = token_flops(model(name), of(sequence, Unit.TOKENS))
            share = 100 * flops.attention.value / flops.forward.value
            line.append((float(sequence), share))
        lines[title] = line
    return curves(
        "Attention's share of the FLOPs", lines, "tokens in a sequence", "in %", across_step=4096
    )


def compiled_bytes(folder: Path) -> str:
    rows = {}
    for way in ("eager", "compiled"):
        entries = ledger_of(folder / f"{way}.tally").entries
        size = sum(entry.cost.bytes for entry in entries if entry.call.name != "aten.randn")
        rows[way] = float(size), format_bytes(size)
    return bars("GELU written out, 16384 x 16384 in bf16: bytes moved", rows)


def sharding(folder: Path) -> str:
    rows = {}
    for title, layout in (("replicated (DDP)", "dp 8, mb 1"), ("sharded (FSDP)", "fsdp, mb 1")):
        plan = f"plan llama-3-8b --gpus 8xH100-SXM --sequence 4096 --layout '{layout}'"
        table = tables(plan)["Memory of the fullest chip, by category"]
        pairs = zip(table.column("category"), table.column("bytes"), strict=True)
        rows[title] = merged((str(name), int(size) / GIB) for name, size in pairs if size)
    return stacks("Llama 3 8B on one of 8 H100 (79.19 GiB)", rows, "GiB")


def merged(parts: Iterable[tuple[str, float]]) -> dict[str, float]:
    """The four largest kinds by name, all others as one."""
    named = ("optimizer state", "master weights", "parameters", "gradients")
    sums = dict.fromkeys((*named, "activations and the rest"), 0.0)
    for name, size in parts:
        sums[name if name in named else "activations and the rest"] += size
    return {name: round(size, 1) for name, size in sums.items()}


LECTURE_PICTURES: dict[str, Callable[[Path], str]] = {
    drawn.__name__: drawn
    for drawn in (
        napkin_days, format_bits, matrix_bytes, views, dimensions, operator_flops, matmul_speed,
        two_layers, initialisation, overlap, optimizer_state, deep_linear_model, teacher_distance,
        checkpoint_bytes, recipes, weight_formats, attention_share, compiled_bytes, sharding,
    )
}  # fmt: skip
"""By their file names in docs/lecture/pictures."""
