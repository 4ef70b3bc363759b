"""Nothing that is read is unpickled or run."""

import ast
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import torchtally.train
from tests.train.checkpoints.saving import check_contents, save


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("unpickled")

    for owner in (pickle, torch.serialization.pickle):
        for name in ("load", "loads", "Unpickler", "dump", "dumps", "Pickler"):
            monkeypatch.setattr(owner, name, refuse)
    for name in ("load", "save"):
        monkeypatch.setattr(torch, name, refuse)
    save(tmp_path, 1)
    check_contents(tmp_path, 1)


FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "importlib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
ALLOWED = {
    ("__init__.py", "importlib"),  # whether the packages of the extra are installed
    ("code.py", "importlib"),  # the user's own module that the config names
    ("logs/log.py", "importlib"),  # versions of distributions
    ("logs/services.py", "importlib"),  # a log that the config asks for, by a table of names
    ("models/gguf_file.py", "importlib"),  # gguf
    ("models/quantised.py", "importlib"),  # torchao
    ("precision.py", "importlib"),  # torchao
}


def offences(source: str) -> set[str]:
    """What could run code out of a file's content."""
    met: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                met |= {alias.name.split(".")[0] for alias in names} & FORBIDDEN_MODULES
            case ast.ImportFrom(module=str(module)):
                met |= {module.split(".")[0]} & FORBIDDEN_MODULES
            case ast.Call(func=ast.Name(id=name)):
                met |= {name} & FORBIDDEN_CALLS
            case ast.Attribute(value=ast.Name(id="torch"), attr="load" | "save" as name):
                met.add(f"torch.{name}")
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                met.add("allow_pickle")
    return met


def test_no_module_of_training_runs_what_it_reads() -> None:
    root = Path(torchtally.train.__file__).parent
    files = sorted(root.rglob("*.py"))
    assert len(files) > 60
    met = {
        (path.relative_to(root).as_posix(), offence)
        for path in files
        for offence in offences(path.read_text())
    }
    assert met == met & ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "torch.load(x)",
        "import marshal as m",
        "np.load(x, allow_pickle=True)",
    ],
)
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert offences(source)
