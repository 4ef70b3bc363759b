"""The benchmark of a training step runs, on the same shapes, and writes what it promises."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.warm import warm

ROOT = Path(__file__).parents[3]


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_it_compares_a_step_with_those_of_transformers(tmp_path: Path) -> None:
    """Two layers of 12 d^2 + 13 d, d = 256, a last norm, and tables of 256 bytes and positions."""
    file = tmp_path / "figures.json"
    program = "import sys; from benchmarks.train_step import main; sys.exit(main())"
    command = warm(program, "--repeat", "1", "--layers", "2", "--vocabulary", "bytes",
                   "--json", str(file))  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "NANOGPT"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    d = 256
    gpt2, llama = json.loads(file.read_text())["pairs"]
    assert gpt2["parameters"] == 2 * (12 * d * d + 13 * d) + 2 * d + 2 * 256 * d
    assert (gpt2["peer"], llama["peer"]) == ("transformers GPT-2", "transformers Llama")
    for pair in (gpt2, llama):
        assert set(pair["steps"]) == {"peer", "ours", "ours, chunks"}
        assert all(ratio["wall"] > 0 for ratio in pair["ratio"].values())
