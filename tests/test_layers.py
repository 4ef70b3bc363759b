"""Imports point down, torch and its private names stay where they belong, starts are quick."""

import subprocess
import sys
from pathlib import Path

import pytest

import torchtally
from tests.builders import TraceBuilder, frame, mm_call, site
from tests.documents import REPOSITORY
from tests.layers import (
    CLIMBING,
    DISTRICTS,
    LAYERS,
    breaches,
    classes_with_two_homes,
    climbs,
    quantities_with_two_homes,
    second_sources,
)

pytestmark = pytest.mark.one_case_in(2)

PACKAGE = Path(torchtally.__file__).parent


def test_the_source_keeps_to_its_layers() -> None:
    assert breaches(PACKAGE) == []


def test_every_layer_exists_and_imports_only_layers_before_it() -> None:
    seen: list[str] = []
    for layer, below in LAYERS.items():
        assert (PACKAGE / layer).is_dir() or (PACKAGE / f"{layer}.py").is_file(), layer
        assert set(below) <= set(seen), f"{layer} would close a circle"
        seen.append(layer)


def test_every_room_is_in_one_district_and_imports_no_higher_floor() -> None:
    rooms = [room for _, _, rooms in DISTRICTS.values() for room in rooms]
    assert sorted(rooms) == sorted(LAYERS)
    assert climbs() == CLIMBING


def test_an_import_of_a_higher_floor_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LAYERS, "views", (*LAYERS["views"], "bench"))
    assert climbs() - CLIMBING == {("views", "bench")}


@pytest.mark.parametrize(
    ("page", "limit"),
    [("ARCHITECTURE.md", 120), ("README.md", 150)]
    + [(str(page.relative_to(REPOSITORY)), 60) for page in sorted(PACKAGE.rglob("README.md"))],
)
def test_a_page_of_the_house_is_short(page: str, limit: int) -> None:
    assert len((REPOSITORY / page).read_text(encoding="utf-8").splitlines()) <= limit


BAD = {
    "an import upwards": ("work/products.py", "from torchtally.views import by"),
    "an import upwards of a whole package": ("work/products.py", "import torchtally.ledger"),
    "an import upwards by name": ("trace/op.py", "from torchtally import ledger"),
    "an import upwards in a function": (
        "memory/occupancy.py",
        "def f():\n    from torchtally.report.text import table_text",
    ),
    "memory that knows the rules of work": (
        "memory/occupancy.py",
        "from torchtally.work import cost_of",
    ),
    "work that knows the rules of memory": ("work/copies.py", "import torchtally.memory.allocator"),
    "memory that knows the rules of timing": (
        "memory/workspace/scratch.py",
        "from torchtally.timing.roofline.launches import launches_of",
    ),
    "timing that knows the rules of memory": (
        "timing/schedule.py",
        "def f():\n    from torchtally.memory import replay",
    ),
    "work that knows the rules of timing": ("work/cost.py", "from torchtally import timing"),
    "torch in accounting": ("ledger.py", "import torch"),
    "torch in a function": ("views/lines.py", "def f():\n    from torch.nn import Module"),
    "torch in a renderer, for types alone": (
        "report/text.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
    ),
    "a command that changes what was asked": ("cli/run.py", "args.gpus = ()"),
    "a state that is none": ("cli/run.py", "class RunPage: ..."),
    "torch behind the command line": ("cli/run.py", "import torch"),
    "a view that formats a number": ("views/growth.py", "note = f'{steps:,} steps'"),
    "a view that imports a format": (
        "views/money.py",
        "from torchtally.units import Unit, format_usd",
    ),
    "the tracer at the top of a command": ("cli/run.py", "from torchtally.tracer import session"),
    "the tracer at the top of pytest's plug-in": (
        "integrations/pytest_plugin.py",
        "from torchtally.tracer.session import trace",
    ),
    "the tracer at the top of the library": (
        "__init__.py",
        "from torchtally.tracer.session import trace",
    ),
    "the tracer known to the virtual GPU": ("virtual/dispatch.py", "import torchtally.tracer"),
    "a private module of torch": ("virtual/dispatch.py", "from torch._ops import OpOverload"),
    "a private name imported": ("virtual/x.py", "from torch.utils import _pytree"),
    "a private module imported whole": ("tracer/x.py", "import torch.utils._pytree as pytree"),
    "a private name of torch": ("bench/x.py", "import torch\ntorch.cuda._sleep(1)"),
    "a private name below an alias": (
        "runs/x.py",
        "from torch.cuda import memory\nmemory._snapshot()",
    ),
    "a private attribute of a tensor": ("virtual/x.py", "def f(x):\n    return x.grad._is_view()"),
    "a private attribute set": ("tracer/x.py", "def f(optimizer):\n    optimizer._step_count = 1"),
    "a private name of torch replaced": (
        "virtual/x.py",
        "import torch\nStandIn(torch.cuda, '_lazy_init', None)",
    ),
    "a private name of torch looked up": ("virtual/x.py", "import torch\ngetattr(torch, '_C')"),
    "a private module looked up": ("virtual/x.py", "import sys\nsys.modules['torch._dynamo']"),
    "rich outside of report": ("views/lines.py", "from rich.text import Text"),
    "rich behind the command line": ("cli/show.py", "def f():\n    import rich"),
    "a class of the command line": ("cli/x.py", "class Progress:\n    pass"),
    "a table of the command line": ("cli/x.py", "def f():\n    return Table('a', (), (), ())"),
    "a document of the command line": ("cli/x.py", "def f():\n    import json"),
    "a compute capability read": ("timing/x.py", "def f(a):\n    return a.compute_capability"),
    "a compute capability compared": (
        "train/x.py",
        "import torch\nis_new = torch.cuda.get_device_capability() >= (8, 0)",
    ),
    "a package in no layer": ("extras.py", ""),
    "a file whose name says nothing": ("work/utils.py", ""),
    "a folder whose name says nothing": ("work/common/rules.py", ""),
}


@pytest.mark.parametrize(("place", "source"), BAD.values(), ids=BAD.keys())
def test_a_breach_is_found(tmp_path: Path, place: str, source: str) -> None:
    file = tmp_path / "torchtally" / place
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert len(breaches(tmp_path / "torchtally")) == 1


GOOD = {
    "a parser of the command line": ("cli/x.py", "class X(argparse.ArgumentParser):\n    pass"),
    "rich in report": ("report/x.py", "from rich.text import Text"),
    "downwards": ("views/lines.py", "from torchtally.ledger import Ledger"),
    "within the layer": ("work/products.py", "from torchtally.work.rule import rule"),
    "torch where it belongs": ("tracer/session.py", "import torch"),
    "the tracer in a command's function": (
        "cli/run.py",
        "def command():\n    from torchtally.tracer.session import trace_script",
    ),
    "a property of multiprocessors": ("timing/x.py", "def f(chip):\n    return chip.sm.has_tma"),
    "a compute capability where it is said what it means": (
        "chips/x.py",
        "def f(chip):\n    return chip.compute_capability >= (9, 0)",
    ),
    "anything above all layers": ("__init__.py", "from torchtally.ledger import account"),
    "torch's private names where they belong": ("torch_private.py", "from torch import _C"),
    "a private name of its own": (
        "virtual/x.py",
        "class A:\n    _n = 1\n    def f(self):\n        self._m = self._n\ndef g(a):\n"
        "    return a._n + a._m",
    ),
    "a private name of Python's": ("runs/x.py", "import os\nos._exit(1)"),
    "a private name in a docstring": ("runs/x.py", '"As torch._C._get_accelerator does."'),
    "an operator": (
        "bench/x.py",
        "import torch\naten = torch.ops.aten\naten._softmax\ntorch.ops.aten._softmax",
    ),
    "another package of a like name": ("ledger.py", "import torchlike"),
}


@pytest.mark.parametrize(("place", "source"), GOOD.values(), ids=GOOD.keys())
def test_what_keeps_to_the_layers_is_not_a_breach(tmp_path: Path, place: str, source: str) -> None:
    file = tmp_path / "torchtally" / place
    file.parent.mkdir(parents=True)
    file.write_text(source)
    assert breaches(tmp_path / "torchtally") == []


def test_one_class_name_has_one_home() -> None:
    assert classes_with_two_homes(PACKAGE) == {}


def test_a_second_home_is_found(tmp_path: Path) -> None:
    """Private classes, and classes within classes or functions, may share a name."""
    for name in ("one.py", "other.py"):
        inner = (
            "class Price:\n    class Inner: ...\nclass _Row: ...\ndef f():\n    class Local: ...\n"
        )
        (tmp_path / name).write_text(inner)
    assert classes_with_two_homes(tmp_path) == {"Price": ["one.py", "other.py"]}


def test_one_quantity_has_one_home() -> None:
    assert quantities_with_two_homes(PACKAGE) == {}


def test_a_second_home_of_a_quantity_is_found(tmp_path: Path) -> None:
    """Private functions, names without a unit and other values of a constant do not count."""
    for name, seconds in (("one.py", 2), ("other.py", 3)):
        (tmp_path / name).write_text(
            f"def step_s(): ...\ndef _call_s(): ...\ndef tokens(): ...\n"
            f"CHUNK_BYTES = 8 * 2**20\nWAIT_S = {seconds}\nRATES_S = {{}}\n"
        )
    assert quantities_with_two_homes(tmp_path) == {
        "step_s": ["one.py", "other.py"],
        "CHUNK_BYTES = 8388608": ["one.py", "other.py"],
    }


def test_a_chips_facts_are_computed_with_in_one_place() -> None:
    assert second_sources(PACKAGE) == []


SECOND_SOURCES = {
    "energy by power and time": "def f(chip, s):\n    return chip.tdp_watts * s",
    "energy by a share of the power": "def f(tdp_watts):\n    return 0.8 * tdp_watts",
    "cost by time": "def f(price, hours):\n    return hours * price.usd_per_hour",
    "cost as a formula": 'def f(hours):\n    return "hours * usd_per_hour"',
    "energy as a formula": 'def f(hours):\n    return "3600 * hours * chip_watts"',
    "MFU by a chip's peak": "def f(flops, s, chip):\n    return flops / s / chip.peak_flop_per_s",
    "MFU as a formula": 'def f(flops, s):\n    return "flops / (s * peak_flop_per_s)"',
    "parameters by their size": "def f(recipe, n):\n    return n * recipe.weight_bytes",
    "a KV cache by its tokens": "def f(each, n):\n    return each.cache_bytes / n",
    "a table of dtypes": 'SIZES = {"float32": 4, "bfloat16": 2}',
}


@pytest.mark.parametrize("source", SECOND_SOURCES.values(), ids=SECOND_SOURCES.keys())
def test_a_second_source_is_found(tmp_path: Path, source: str) -> None:
    file = tmp_path / "views" / "money.py"
    file.parent.mkdir()
    file.write_text(source)
    assert len(second_sources(tmp_path)) == 1


FIRST_SOURCES = {
    "a fact that is shown": "def f(chip):\n    return chip.tdp_watts",
    "a fact that is compared": "def f(chip):\n    return chip.tdp_watts is None",
    "a text that names one": 'def f():\n    return "usd_per_hour"',
    "rates by dtype": 'SHARES = {"float32": 0.5, "bfloat16": 0.8}',
}


@pytest.mark.parametrize("source", FIRST_SOURCES.values(), ids=FIRST_SOURCES.keys())
def test_what_reads_a_fact_is_no_second_source(tmp_path: Path, source: str) -> None:
    (tmp_path / "x.py").write_text(source)
    assert second_sources(tmp_path) == []


LIGHT = {
    "import torchtally": "import torchtally",
    "all of accounting": "from torchtally import Trace, account, by, chip",
    "tally --help": "main(['--help'])",
    "tally run --help": "main(['run', '--help'])",
    "tally gpus": "main(['gpus'])",
    "tally gpus --json": "main(['gpus', '--json'])",
    "tally dtypes 0.1": "main(['dtypes', '0.1'])",
    "tally show FILE": "main(['show', FILE])",
    "tally show FILE --by line": "main(['show', FILE, '--by', 'line'])",
}

LOADED = """
import sys
from torchtally.cli import main
FILE = sys.argv[1]
try:
    {action}
except SystemExit as end:
    assert not end.code, end.code
print(*sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""


def loaded_by(action: str, file: Path) -> set[str]:
    """Top-level modules in memory after an action in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED.format(action=action), file],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    builder.run(mm_call(2, 3, 4), (0, 0), site=site(frame()))
    file = tmp_path / "run.tally"
    builder.build().save(file)
    return file


@pytest.mark.parametrize("action", LIGHT.values(), ids=LIGHT.keys())
def test_torch_is_not_imported(action: str, trace_file: Path) -> None:
    assert {"torch", "numpy"}.isdisjoint(loaded_by(action, trace_file))


def test_help_imports_no_renderer(trace_file: Path) -> None:
    assert {"rich", "msgspec"}.isdisjoint(loaded_by("main(['--help'])", trace_file))


def test_torch_is_noticed_where_it_is_imported(trace_file: Path) -> None:
    assert "torch" in loaded_by("from torchtally import virtual_gpu", trace_file)
