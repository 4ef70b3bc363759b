"""What other tools say of the same training step: FLOPs, parameters, peak memory, and at what cost.

    python -m benchmarks.peers                  # writes benchmarks/peers.json, which README shows
    python -m benchmarks.peers --venv FOLDER    # keep the environment for the next time

The step is one of examples/train_gpt.py at the size of nanoGPT's smallest configuration. Every tool
is a process of its own and gets the model as its documentation asks for it. Those that are not part
of PyTorch are installed into a throwaway environment, each by itself; one that does not install,
or fails on this model, is listed with the reason.
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import venv
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.measuring import machine, parser, spent_on, write

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "train_gpt.py"
RESULTS = Path(__file__).with_suffix(".json")
SIZES = {"layers": 6, "width": 384, "heads": 6, "context": 256, "batch_size": 12}
GPU = "H100-SXM"


@dataclass(frozen=True, slots=True)
class Said:
    """What a tool reports. None: it has no such figure."""

    flops: int | None = None
    covers: str = "step"
    """Which part of the step the FLOPs are of."""
    parameters: int | None = None
    peak_bytes: int | None = None


# The tools ---------------------------------------------------------------------------------------


def step_parts() -> tuple[Any, Any, Any, Any]:
    """(model, optimizer, tokens, targets), on whatever device factories put tensors on."""
    import torch

    spec = importlib.util.spec_from_file_location("train_gpt", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    model = script.GPT(Namespace(**SIZES, dropout=0.0, checkpoint=False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    windows = torch.zeros((SIZES["batch_size"], SIZES["context"]), dtype=torch.int64)
    return model, optimizer, windows, windows


def train(model: Any, optimizer: Any, tokens: Any, targets: Any) -> None:
    """One step, as the script takes it."""
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(tokens, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()


def torchtally() -> Said:
    options = [f"--{name.replace('_', '-')}={size}" for name, size in SIZES.items()]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "torchtally", "run", str(SCRIPT), *options]
        own = ["--gpu", GPU, "--quiet", "--json", str(report), "-o", f"{folder}/run.tally"]
        subprocess.run([*command, *own], check=True, cwd=folder)
        document = json.loads(report.read_text())
    return Said(
        flops=document["totals"]["flops"],
        parameters=document["parameters"],
        peak_bytes=document["memory"]["peak_allocated_bytes"],
    )


def flop_counter() -> Said:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):  # counts from shapes alone
        parts = step_parts()
        train(*parts)  # makes the optimizer's state
        with FlopCounterMode(display=False) as counter:
            train(*parts)
    return Said(flops=counter.get_total_flops())


def mem_tracker() -> Said:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model, optimizer, tokens, targets = step_parts()
        train(model, optimizer, tokens, targets)  # it tracks one step, so not the first one
        tracker = MemTracker()
        tracker.track_external(model, optimizer, tokens)
        with tracker:
            train(model, optimizer, tokens, targets)
    peaks = tracker.get_tracker_snapshot("peak")
    return Said(peak_bytes=peaks[torch.device("cpu")]["Total"])


def memory_snapshot() -> Said:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("not run: no GPU here")
    torch.cuda.memory._record_memory_history()
    torch.set_default_device("cuda")
    for _ in range(2):
        train(*step_parts())
    return Said(peak_bytes=torch.cuda.max_memory_allocated())


def torchinfo() -> Said:
    from torchinfo import summary

    model, _, tokens, targets = step_parts()
    stats = summary(model, input_data=[tokens, targets], verbose=0)
    return Said(
        flops=2 * stats.total_mult_adds,
        covers="forward",
        parameters=stats.total_params,
        peak_bytes=stats.total_input + stats.total_output_bytes + stats.total_param_bytes,
    )


def fvcore() -> Said:
    from fvcore.nn import FlopCountAnalysis, parameter_count

    model, _, tokens, targets = step_parts()
    counted = FlopCountAnalysis(model, (tokens, targets))
    counted.unsupported_ops_warnings(False)
    return Said(flops=2 * counted.total(), covers="forward", parameters=parameter_count(model)[""])


def calflops() -> Said:
    from calflops import calculate_flops

    model, _, tokens, targets = step_parts()
    flops, _, parameters = calculate_flops(
        model, args=[tokens, targets], print_results=False, print_detailed=False,
        output_as_string=False,
    )  # fmt: skip
    return Said(flops=round(flops), covers="forward", parameters=parameters)


def deepspeed() -> Said:
    from deepspeed.profiling.flops_profiler import get_model_profile

    model, _, tokens, targets = step_parts()
    flops, _, parameters = get_model_profile(
        model, args=[tokens, targets], print_profile=False, as_string=False, warm_up=0
    )
    return Said(flops=round(flops), covers="forward", parameters=parameters)


@dataclass(frozen=True, slots=True)
class Tool:
    """A peer: how it is asked, and what cannot be measured but only read in its documentation."""

    name: str
    ask: Callable[[], Said]
    finest: str
    """The smallest part of a script that it charges."""
    needs_gpu: bool = False
    package: str = ""
    """What pip installs. "": part of PyTorch, or this project."""


TOOLS = (
    Tool("torchtally", torchtally, "line, module, operator"),
    Tool("FlopCounterMode", flop_counter, "module, operator"),
    Tool("MemTracker", mem_tracker, "module"),
    Tool("CUDA memory snapshot", memory_snapshot, "allocation, with its stack", needs_gpu=True),
    Tool("torchinfo", torchinfo, "module", package="torchinfo"),
    Tool("fvcore", fvcore, "module, operator", package="fvcore"),
    Tool("calflops", calflops, "module", package="calflops"),
    Tool("DeepSpeed's profiler", deepspeed, "module", package="deepspeed"),
)


def forward_flops() -> int:
    """By hand: 2 FLOPs for each weight and token, and attention's two products."""
    L, d, S, B, V = *(SIZES[name] for name in ("layers", "width", "context", "batch_size")), 256
    T = B * S
    return 2 * T * (12 * L * d * d + d * V) + L * 4 * T * S * d


# The processes -----------------------------------------------------------------------------------


def environment(folder: Path) -> str:
    """The interpreter of an environment that also sees this one's packages."""
    venv.create(folder, with_pip=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    own = [str(ROOT / "src"), *(path for path in sys.path if path.endswith("site-packages"))]
    (folder / "lib" / version / "site-packages" / "parent.pth").write_text("\n".join(own))
    return str(folder / "bin" / "python")


def install(python: str, package: str) -> str:
    """Why it could not be installed; "" when it is."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    return last_line(done.stderr) if done.returncode else ""


def last_line(stderr: str) -> str:
    """The last line of a traceback."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    return lines[-1].strip()[:100] if lines else "no message"


def measured(python: str, tool: Tool, repeat: int) -> dict[str, Any]:
    """What a tool says, with what its process takes, imports and all; or why it says nothing."""
    record: dict[str, Any] = {"name": tool.name, "finest": tool.finest, "needs_gpu": tool.needs_gpu}
    problem = install(python, tool.package) if tool.package else ""
    if problem:
        return record | {"problem": f"does not install: {problem}"}
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [python, "-m", "benchmarks.peers", "--ask", tool.name, "--json", str(answer)]
        runs = []
        for _ in range(repeat):
            try:
                runs.append(spent_on(command, cwd=ROOT))
            except SystemExit as error:
                return record | {"problem": last_line(str(error))}
        said = json.loads(answer.read_text())
    return record | said | {
        "cpu_s": median(run.cpu_s for run in runs),
        "wall_s": median(run.wall_s for run in runs),
        "peak_rss_bytes": max(run.peak_rss_bytes for run in runs),
    }  # fmt: skip


# The table ---------------------------------------------------------------------------------------


def peers_table() -> str:
    """The results of the last run as Markdown, for the README."""
    results = json.loads(RESULTS.read_text())
    rows = [
        "| | FLOPs | of | parameters | peak memory | charged to | needs a GPU | CPU time |",
        "|---|--:|---|--:|--:|---|---|--:|",
    ]
    for tool in results["tools"]:
        needs = "yes" if tool["needs_gpu"] else "no"
        if "problem" in tool:
            rows.append(
                f"| {tool['name']} | {tool['problem']} | | | | {tool['finest']} | {needs} | |"
            )
            continue
        flops, peak = tool["flops"], tool["peak_bytes"]
        cells = (
            tool["name"],
            "-" if flops is None else f"{flops / 1e9:.4g} G",
            "-" if flops is None else tool["covers"],
            f"{tool['parameters'] / 1e6:.2f} M" if tool["parameters"] else "-",
            "-" if peak is None else f"{peak / 2**20:.0f} MiB",
            tool["finest"],
            needs,
            f"{tool['cpu_s']:.1f} s",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--venv", metavar="FOLDER", help="keep the environment of the peers here")
    options.add_argument("--ask", choices=[tool.name for tool in TOOLS], help="one tool, here")
    options.add_argument("--tools", metavar="NAMES", help="only these, separated by commas")
    args = options.parse_args(argv)
    chosen = args.tools.split(",") if args.tools else [tool.name for tool in TOOLS]
    if args.ask:
        tool = next(tool for tool in TOOLS if tool.name == args.ask)
        Path(args.json).write_text(json.dumps(asdict(tool.ask())))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.venv or temporary)
        tools = [tool for tool in TOOLS if tool.name in chosen]
        is_needed = any(tool.package for tool in tools)
        python = environment(folder) if is_needed else sys.executable
        records = [measured(python, tool, args.repeat) for tool in tools]
    results = {
        "machine": machine(),
        "sizes": SIZES,
        "forward_flops": forward_flops(),
        "tools": records,
    }
    if not args.json:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    write(args.json, results)
    print(json.dumps(records, indent=1))
    print(f"by hand: {forward_flops():,} FLOPs forward")
    return 0


if __name__ == "__main__":
    sys.exit(main())
