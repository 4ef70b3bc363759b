"""Popular packages that are installed here, imported beside a small training."""

import importlib.util
import json
from pathlib import Path

from tests.packages.__main__ import RESULTS
from tests.packages.names import packages
from tests.packages.trial import Ran, difference, run_both
from tests.warm import commands

LIGHT = (
    *("numpy", "PIL.Image", "networkx", "sympy", "einops", "safetensors.torch", "requests", "yaml"),
    *("aiohttp", "rich", "tqdm.auto", "psutil", "click", "jinja2", "pydantic", "msgspec", "fsspec"),
    *("filelock", "packaging", "huggingface_hub", "grpc", "urllib3"),
)
"""Of those that are installed here, what imports in a fraction of a second."""


def is_installed(module: str) -> bool:
    return importlib.util.find_spec(module.partition(".")[0]) is not None


def test_a_script_that_imports_them_ends_and_prints_as_alone(tmp_path: Path):
    known = {package.module for package in packages()}
    modules = [module for module in LIGHT if is_installed(module)]
    assert known.issuperset(LIGHT)
    assert {"numpy", "networkx", "sympy", "filelock"} <= set(modules)  # torch needs them
    alone, tally = run_both(modules, tmp_path, commands() / "python")
    assert alone.stdout == "trained 4\n", alone.stderr
    assert difference(alone, tally) == ""


def test_a_difference_is_seen() -> None:
    alone = Ran(0, "trained 4\n", "")
    assert difference(alone, alone) == ""
    assert "exit code 1 instead of 0: boom" in difference(alone, Ran(1, "", "boom\n"))
    assert "prints" in difference(alone, Ran(0, "", ""))


def test_200_packages_were_tried_and_none_differs() -> None:
    results = json.loads(RESULTS.read_text())["packages"]
    assert [*results] == [package.module for package in packages()]
    outcomes = [result["outcome"] for result in results.values()]
    assert outcomes.count("same") >= 200
    assert "differs" not in outcomes
    assert all(result["why"] for result in results.values() if result["outcome"] == "skipped")
