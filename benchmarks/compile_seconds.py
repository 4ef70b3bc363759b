"""What compiling costs: `tally run` of two AdamW steps, with torch.compile and without.

GPT-2 124M (12 x 1,024 tokens, bfloat16 by autocast, fused AdamW) compiled whole: target 25 s of CPU
time. 32 layers of Llama-3-8B (1 x 4,096 tokens in bfloat16), each compiled by itself: 8 s. All are
user and system time of a process of its own, imports included, of the fastest run, which other
processes disturb least; it is to be judged where the cores do nothing else. A second step compiles
nothing, and a script that does not compile imports nothing of the compiler. Ends with 1 where one
of these is missed. The peer is the same GPT-2 without torch.compile.

    python -m benchmarks.compile_seconds [--repeat 3] [--layers N] [--json FILE]
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import (
    TALLY,
    Spent,
    against,
    interleaved,
    middle,
    parser,
    seconds,
    show,
    spent_on,
    write,
)

GPT2 = """\
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, CONTEXT, VOCABULARY, LAYERS = 768, 12, 1024, 50304, {layers}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH, bias=False)
        self.mlp_norm = nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.projection = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.attention_norm(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = GPT().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
run = {run}


def step():
    ids, targets = torch.randint(VOCABULARY, (2, 12, CONTEXT), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = run(ids, targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""

LLAMA = """\
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, HEADS, KV_HEADS, FFN, VOCABULARY, LAYERS = 4096, 32, 8, 14336, 128256, {layers}
HEAD = WIDTH // HEADS


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.v = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, FFN, bias=False)
        self.up = nn.Linear(WIDTH, FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        normed = self.attention_norm(x)
        q, k, v = (
            part(normed).view(batch, length, -1, HEAD).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        normed = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, targets, cos, sin):
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


with torch.device("cuda"):
    model = Llama().to(torch.bfloat16)
    angles = torch.outer(torch.arange(4096), 5e5 ** (-torch.arange(0, HEAD, 2) / HEAD))
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(torch.bfloat16), angles.sin().to(torch.bfloat16)
for layer in model.layers:
    layer.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)


def step():
    ids, targets = torch.randint(VOCABULARY, (2, 1, 4096), device="cuda")
    model(ids, targets, cos, sin).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""

TWO_STEPS = """

import json
import sys


def compiled():
    utilities = sys.modules.get("torch._dynamo.utils")
    metrics = sys.modules.get("torch._inductor.metrics")
    graphs = utilities.counters["stats"]["unique_graphs"] if utilities else 0
    return [graphs, metrics.generated_kernel_count if metrics else 0]


so_far = []
for _ in range(2):
    step()
    so_far.append(compiled())
modules = sum(name.startswith(("torch._inductor", "triton")) for name in sys.modules)
print(json.dumps({"so_far": so_far, "modules": modules}))
"""
"""Beside the steps: graphs and kernels that were compiled until the end of each, and how many
modules of the compiler are imported in the end."""

IMPORTS = "import torch, torchtally"
COMPILER = f"{IMPORTS}, torchtally.torch_private.compiler"

EAGER, WHOLE, LAYERS = "GPT-2 124M, eager", "GPT-2 124M, compiled", "Llama, each layer compiled"
TARGETS_CPU_S = {WHOLE: 25.0, LAYERS: 8.0}
SCRIPTS = {
    EAGER: (GPT2, "model", 12),
    WHOLE: (GPT2, "torch.compile(model)", 12),
    LAYERS: (LLAMA, "", 32),
}
"""The script, what stands for `run` in it, and its layers."""


def run_script(command: Sequence[str], folder: Path, name: str) -> tuple[Spent, dict[str, Any]]:
    """What the process took, and what the script printed of what had been compiled."""
    printed = folder / f"{name}.out"
    with printed.open("w") as file:
        spent = spent_on(command, cwd=folder, stdout=file)
    return spent, json.loads(printed.read_text().splitlines()[-1])


def misses(
    cpu_s: dict[str, float], printed: dict[str, dict[str, Any]], targets_cpu_s: dict[str, float]
) -> list[str]:
    """Which limits do not hold."""
    missed = [
        f"{name} took {seconds(cpu_s[name])} of CPU time, more than {seconds(target)}"
        for name, target in targets_cpu_s.items()
        if cpu_s[name] > target
    ]
    for name in (WHOLE, LAYERS):
        (graphs, kernels), after_second = printed[name]["so_far"]
        if not graphs or not kernels:
            missed.append(f"{name} compiled nothing")
        if [graphs, kernels] != after_second:
            missed.append(f"{name} compiled in its second step, too")
    if printed[EAGER]["modules"]:
        missed.append(f"{EAGER} imported {printed[EAGER]['modules']} modules of the compiler")
    return missed


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--layers", type=int, default=None, metavar="N", help="fewer layers")
    args = options.parse_args(argv)
    targets = TARGETS_CPU_S if args.layers is None else {}  # of the whole models
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work: dict[str, Any] = {
            imports: partial(spent_on, [sys.executable, "-c", imports], cwd=folder)
            for imports in (IMPORTS, COMPILER)
        }
        for number, (script, (text, run, layers)) in enumerate(SCRIPTS.items()):
            file = f"script{number}.py"
            source = text.format(layers=args.layers or layers, run=run) + TWO_STEPS
            (folder / file).write_text(source)
            command = [TALLY, "run", file, "--gpu", "H100-SXM", "--no-oom", "--steps", "all",
                       "--quiet", "-o", f"{file}.tally"]  # fmt: skip
            work[script] = partial(run_script, command, folder, file)
        samples = interleaved(work, args.repeat)
    printed = {script: [shown for _, shown in samples[script]][-1] for script in SCRIPTS}
    runs: dict[str, list[Spent]] = {
        name: [sample if name not in SCRIPTS else sample[0] for sample in samples[name]]
        for name in work
    }
    figures = {name: middle(spent) for name, spent in runs.items()}
    cpu_s = {name: figure.cpu_s for name, figure in figures.items()}
    fastest_s = {name: min(spent.cpu_s for spent in spents) for name, spents in runs.items()}
    imports_s = {script: cpu_s[IMPORTS if script == EAGER else COMPILER] for script in SCRIPTS}
    show(
        f"tally run of two AdamW steps, median of {args.repeat}",
        ("", "CPU", "fastest", "without imports", "of eager", "wall", "target"),
        [
            (
                name,
                seconds(cpu_s[name]),
                seconds(fastest_s[name]),
                seconds(cpu_s[name] - imports_s[name]) if name in imports_s else "",
                f"{cpu_s[name] / cpu_s[EAGER]:.1f}" if name in SCRIPTS else "",
                seconds(figures[name].wall_s),
                f"{seconds(targets[name])}: {against(fastest_s[name], targets[name])}"
                if name in targets
                else "",
            )
            for name in work
        ],
    )
    missed = misses(fastest_s, printed, targets)
    for name in (WHOLE, LAYERS):
        graphs, kernels = printed[name]["so_far"][0]
        print(f"  {name}: {graphs} graphs of Dynamo, {kernels} kernels")
    for line in missed:
        print(f"  missed: {line}")
    write(
        args.json,
        {
            "targets_cpu_s": targets,
            "printed": printed,
            "missed": missed,
            "runs": {name: [asdict(spent) for spent in spents] for name, spents in runs.items()},
        },
    )
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
