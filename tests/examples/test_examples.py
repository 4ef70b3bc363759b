"""The examples run, for real and on a GPU that is not there, and cost what their formulas say."""

import ast
import json
import subprocess
from math import log
from pathlib import Path
from typing import Any

import pytest

from tests.warm import TALLY, warm

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SCRIPTS = ("train_gpt.py", "train_llama_hf.py", "train_fsdp.py")


PYTHON = """
import runpy, sys
from pathlib import Path
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def python(folder: Path, *arguments: object) -> str:
    """What a Python script prints; whatever it says on stderr is shown when it fails."""
    command = warm(PYTHON, *map(str, arguments))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tally(folder: Path, *arguments: object) -> Any:
    """The document of `tally run`: its totals are of one step."""
    command = warm(TALLY, "run", *map(str, arguments), "--quiet", "--json", "report.json")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "report.json").read_text())


def as_flags(**values: int) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in values.items()]


GPT = {"layers": 2, "width": 64, "heads": 4, "context": 32, "batch_size": 4}
LLAMA = {"layers": 2, "width": 64, "hidden": 160, "heads": 4, "kv_heads": 2, "vocabulary": 512,
         "context": 32, "batch_size": 3}  # fmt: skip
DECODER = {"layers": 2, "width": 64, "heads": 4, "vocabulary": 256, "context": 32, "batch_size": 4}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_knows_nothing_of_torchtally(script: str) -> None:
    tree = ast.parse((EXAMPLES / script).read_text())
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import)]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not [module for module in imported if "torchtally" in module]


@pytest.mark.parametrize(
    ("script", "sizes"),
    [("train_gpt.py", GPT), ("train_llama_hf.py", LLAMA), ("train_fsdp.py", DECODER)],
    ids=SCRIPTS,
)
def test_a_script_runs_for_real(script: str, sizes: dict[str, int], tmp_path: Path) -> None:
    extra = ["--log-every=1"] if script == "train_gpt.py" else []
    printed = python(tmp_path, EXAMPLES / script, *as_flags(**sizes), "--steps=3", *extra)
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in printed.splitlines()]
    assert len(losses) == (1 if script == "train_fsdp.py" else 3)
    vocabulary = sizes.get("vocabulary", 256)
    assert all(0.9 < loss / log(vocabulary) < 1.2 for loss in losses)  # it knows nothing yet


@pytest.mark.thorough
def test_gpt_costs_what_its_formula_says(tmp_path: Path) -> None:
    L, d, S, B, V = GPT["layers"], GPT["width"], GPT["context"], GPT["batch_size"], 256
    weights = L * 12 * d * d + d * V  # qkv 3, projection 1, up 4, down 4; the head
    report = tally(tmp_path, EXAMPLES / "train_gpt.py", *as_flags(**GPT), "--gpu=H100-SXM")
    assert report["totals"]["flops_matmul"] == training_flops(weights, L * d, S, B * S)
    assert report["coverage"]["uncounted"] == []


def test_llama_costs_what_its_formula_says(tmp_path: Path) -> None:
    L, d, f, V = LLAMA["layers"], LLAMA["width"], LLAMA["hidden"], LLAMA["vocabulary"]
    H, K, S, B = LLAMA["heads"], LLAMA["kv_heads"], LLAMA["context"], LLAMA["batch_size"]
    block = 2 * d * d + 2 * d * (d // H * K) + 3 * d * f  # q, output; k, v; gate, up, down
    script = EXAMPLES / "train_llama_hf.py"
    report = tally(tmp_path, script, *as_flags(**LLAMA), "--gpu=H100-SXM", "--no-checkpointing")
    assert report["totals"]["flops_matmul"] == training_flops(L * block + d * V, L * d, S, B * S)
    assert report["coverage"]["uncounted"] == []


def training_flops(weights: int, layers_by_width: int, context: int, tokens: int) -> int:
    """Products: 2 forward, 4 backward for each weight and token. Attention: 2 products, then 5."""
    products = 6 * tokens * weights
    return products + (2 + 5) * 2 * tokens * context * layers_by_width


@pytest.mark.thorough
def test_checkpointing_trades_memory_for_flops(tmp_path: Path) -> None:
    kept, again = (
        tally(tmp_path, EXAMPLES / "train_gpt.py", *as_flags(**GPT), "--gpu=H100-SXM", *flags)
        for flags in ([], ["--checkpoint"])
    )
    assert again["memory"]["peak_allocated_bytes"] < kept["memory"]["peak_allocated_bytes"]
    assert again["totals"]["flops_forward"] == kept["totals"]["flops_forward"]
    assert again["totals"]["flops"] > kept["totals"]["flops"]


@pytest.mark.thorough
def test_a_loss_that_is_read_is_reported(tmp_path: Path) -> None:
    script = EXAMPLES / "train_gpt.py"
    report = tally(tmp_path, script, *as_flags(**GPT), "--log-every=1", "--gpu=H100-SXM")
    (placeholder,) = report["placeholders"]
    line = script.read_text().splitlines()[placeholder["line"] - 1]
    assert "loss.item()" in line


@pytest.mark.thorough
def test_the_notebook_runs(tmp_path: Path) -> None:
    printed = python(tmp_path, EXAMPLES / "notebook.py")
    assert "8192 8192\ntensor([1., 2., 3.], device='cuda:0')\nFalse\n" in printed
    assert "\nTrue " in printed  # the products' FLOPs, by hand
    assert (tmp_path / "train.tally").exists()


def test_a_rank_of_fsdp_costs_what_its_formula_says(tmp_path: Path) -> None:
    """A rank's own FLOPs, its share of the parameters, and what it gathers and reduces of them."""
    L, d, V = DECODER["layers"], DECODER["width"], DECODER["vocabulary"]
    S, B, ranks = DECODER["context"], DECODER["batch_size"], 4
    sizes = as_flags(**DECODER)
    report = tally(tmp_path, EXAMPLES / "train_fsdp.py", *sizes, f"--gpu={ranks}xH100-SXM")
    block = 12 * d * d
    assert report["totals"]["flops_matmul"] == training_flops(L * block + d * V, L * d, S, B * S)
    elements = L * (block + 2 * d) + 2 * d * V + d
    assert report["parameters"] == elements
    assert report["own_parameters"] == elements // ranks
    assert report["throughput"]["data_parallel_ranks"] == ranks
    assert report["coverage"]["uncounted"] == []
