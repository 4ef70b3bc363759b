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
from tests.lecture.drawings import (
    Bar,
    Dot,
    Product,
    Range,
    chain,
    ladder,
    number_lines,
    roofline,
    stack,
    timeline,
)
from torchtally.ledger import Ledger, account
from torchtally.number_formats import FORMATS
from torchtally.number_formats.layout import FloatLayout
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


def format_ranges(folder: Path) -> str:
    rows = {}
    for name in ("fp32", "tf32", "bf16", "fp16", "fp8_e5m2", "fp8_e4m3"):
        layout = FORMATS[name].layout
        assert isinstance(layout, FloatLayout)
        least, normal = layout.smallest_subnormal, layout.smallest_normal
        rows[name] = Range(*map(float, (least, normal, layout.spacing_at_one, layout.largest)))
    return number_lines("Where formats begin and end, and how fine they are at 1", rows)


A100_L2_BYTES_PER_CLOCK = 5120
"""Read from its L2 cache: NVIDIA A100 whitepaper, "A100 L2 Cache"."""
REGISTERS_BYTES = 256 * 1024
"""Of a multiprocessor: the same, table 4."""


def memory_ladder(folder: Path) -> str:
    chip = torchtally.chip("A100-SXM")
    link, memory = chip.host_link, chip.memory_bytes
    assert link is not None
    assert link.bytes_per_s_per_direction is not None
    assert chip.l2_cache_bytes is not None
    assert chip.multiprocessors is not None
    assert chip.boost_clock_hz is not None
    registers = chip.multiprocessors * REGISTERS_BYTES
    places = {
        "host": "as much as one buys",
        "device memory (HBM)": format_bytes(memory),
        "L2 cache": format_bytes(chip.l2_cache_bytes),
        f"registers of {chip.multiprocessors} multiprocessors": format_bytes(registers),
    }
    rates = {
        link.name: link.bytes_per_s_per_direction,
        "HBM": chip.memory_bandwidth_bytes_per_s,
        "L2": A100_L2_BYTES_PER_CLOCK * chip.boost_clock_hz,
    }
    links = {name: f"{rate / 1e9:,.4g} GB/s" for name, rate in rates.items()}
    return ladder("Where bytes lie on an A100, and how fast they come nearer", places, links)


def batched_product(folder: Path) -> str:
    left, right = torch.ones(4, 8, 16, 32), torch.ones(32, 2)
    shapes = {
        name: (math.prod(tensor.shape[:-2]), *tensor.shape[-2:])
        for name, tensor in (("x", left), ("w", right), ("x @ w", left @ right))
    }
    return stack("A batched product: each sheet of x by the same w", shapes, ("@", "="))


def operator_roofline(folder: Path) -> str:
    chip = torchtally.chip("H100-SXM")
    dots = []
    for key, total in ledger_of(folder / "run.tally").by_line().items():
        if key is not None and total.flops and "randn" not in key.text:
            name = key.text.partition(" = ")[2]
            dots.append(Dot(name, total.flops / total.bytes, total.flops / total.kernel_s))
    peak, bandwidth = chip.peak_flop_per_s("float32"), chip.memory_bandwidth_bytes_per_s
    return roofline("The operators under an H100's roof in fp32", dots, peak, bandwidth)


def backward_chain(folder: Path) -> str:
    entries = ledger_of(folder / "two_layers.tally").entries
    counts = [entry.cost.flops for entry in entries if entry.call.name == "aten.mm"]
    names = (  # in the order in which they run
        (0, "forward", "x @ w1"), (1, "forward", "h1 @ w2"), (1, "weight", "h1.T @ d h2"),
        (1, "input", "d h2 @ w2.T"), (0, "weight", "x.T @ d h1"),
    )  # fmt: skip
    products = [
        Product(*name, f"{count / 1e12:.1f} T") for name, count in zip(names, counts, strict=True)
    ]
    return chain("The five products of the two-layer model", ("x", "h1", "h2"), products)


def two_streams(folder: Path) -> str:
    """Each stream in its order; what waits for the other begins when both are done."""
    ledger = ledger_of(folder / "run.tally")
    names = {"_to_copy": "copy", "mm": "product", "sum": "sum"}
    ends: dict[str, float] = {"compute": 0.0, "copies": 0.0}
    shown = []
    for entry in ledger.entries:
        operator = entry.call.name.removeprefix("aten.")
        if operator not in names:
            continue
        lane = "compute" if entry.op.stream == 0 else "copies"
        is_copied = lane == "copies"
        name = names[operator] if is_copied or operator != "_to_copy" else "sum"
        begin = max(ends.values()) if name == "sum" else ends[lane]
        ends[lane] = begin + ledger.times.kernel_s([entry])
        shown.append(Bar(lane, name, begin, ends[lane]))
    return timeline("The copy runs beside the products", shown, lambda s: f"{s * 1e6:.1f} us")


def lost_time(folder: Path) -> str:
    """Of page 14: a crash every 54 days / 419, 840 GB."""
    crash_s, lines = 54 * 86400 / 419, {}
    for name, rate in (("one NVMe disk, 3.5 GB/s", 3.5e9), ("ten of them", 35e9)):
        save_s = 12 * 70e9 / rate
        lines[name] = [
            (minutes, 100 * (save_s / (60 * minutes) + 60 * minutes / 2 / crash_s))
            for minutes in (float(count) for count in range(8, 121, 2))
        ]
    across = "minutes between checkpoints"
    return curves("Time lost to saving and to crashes", lines, across, "in %", across_step=20)


LECTURE_PICTURES: dict[str, Callable[[Path], str]] = {
    drawn.__name__: drawn
    for drawn in (
        napkin_days, format_bits, matrix_bytes, views, dimensions, operator_flops, matmul_speed,
        two_layers, initialisation, overlap, optimizer_state, deep_linear_model, teacher_distance,
        checkpoint_bytes, recipes, weight_formats, attention_share, compiled_bytes, sharding,
        format_ranges, memory_ladder, batched_product, operator_roofline, backward_chain,
        two_streams, lost_time,
    )
}  # fmt: skip
"""By their file names in docs/lecture/pictures."""
