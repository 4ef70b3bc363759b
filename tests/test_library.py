"""The library as a notebook uses it: public names, what objects show, what the examples say."""

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from textwrap import dedent

import pytest

import torchtally
from tests.builders import TraceBuilder, frame, mm_call, site
from torchtally.ledger import Ledger, account
from torchtally.report.terminal import table_text
from torchtally.report.text import summary_text
from torchtally.timing.roofline import Roofline
from torchtally.views import by
from torchtally.views.summary import summarise

PACKAGE = Path(torchtally.__file__).parent


def ledger(text: str = "x @ w", roofline: Roofline | None = None) -> Ledger:
    """One product of 2 x 3 by 3 x 4: 48 FLOPs."""
    builder = TraceBuilder()
    inputs = builder.allocate(24), builder.allocate(48)
    builder.run(mm_call(2, 3, 4), inputs, site=site(frame(text=text), module="net"))
    builder.end_step()
    return account(builder.build(script=text), roofline=roofline)


# What an object shows --------------------------------------------------------------------------


def test_representations_are_one_line() -> None:
    chip = torchtally.chip("H100-SXM")
    of = ledger(roofline=Roofline(chip))
    assert repr(of.trace) == "<Trace of 'x @ w' on H100-SXM: 1 ops, 1 steps, 3 storages>"
    assert repr(of.memory) == "<Memory of cuda:0: 3 storages, peak 1536 bytes at tick 0>"
    assert repr(of.roofline) == "<Roofline of H100-SXM: data sheet>"
    assert repr(chip) == "<Chip H100-SXM: Hopper GH100, 85520809984 bytes>"
    assert repr(by(of, "op")).startswith("<Table 'By operator")
    assert repr(of).startswith("<Ledger of 'x @ w' on H100-SXM, step 1 (with all before it): 1 ops")
    assert "48 FLOPs" in repr(of)
    assert "not timed" in repr(ledger())
    shown = (of, of.trace, of.memory, of.roofline, chip, by(of, "op"))
    assert all("\n" not in repr(value) and len(repr(value)) < 150 for value in shown)


def test_the_text_of_a_table_and_of_a_ledger_is_what_the_command_prints() -> None:
    of = ledger()
    assert str(by(of, "line")) == table_text(by(of, "line"))
    assert str(of) == summary_text(summarise(of))
    assert "48" in str(by(of, "line"))


HOSTILE = "<script>alert(1)</script>"


def test_a_notebook_gets_static_html() -> None:
    of = ledger(HOSTILE)
    for html in (of._repr_html_(), by(of, "line")._repr_html_()):
        assert "<table>" in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert not any(tag in html for tag in ("<script", "<link", "<img", "<iframe", "url("))


def test_a_notebook_shows_the_first_rows_and_says_how_many_are_left_out() -> None:
    builder = TraceBuilder()
    inputs = builder.allocate(24), builder.allocate(48)
    for line in range(1, 31):
        builder.run(mm_call(2, 3, 4), inputs, site=site(frame(line=line)))
    html = by(account(builder.build()), "line")._repr_html_()
    assert html.count("<tr>") == 1 + 20 + 1
    assert "10 more rows." in html


# Public names ----------------------------------------------------------------------------------

CALLS = """
import torchtally

def train():
    import torch
    torch.zeros(8, device="cuda")

trace = torchtally.run(train, gpu="H100-SXM")
CALLS = {
    "Chip": lambda: isinstance(torchtally.chip("H100-SXM"), torchtally.Chip),
    "DurableCallback": lambda: torchtally.DurableCallback("nowhere") is not None,
    "Ledger": lambda: isinstance(torchtally.account(trace), torchtally.Ledger),
    "LightningDurableCallback": lambda: torchtally.LightningDurableCallback("nowhere") is not None,
    "LightningTallyCallback": lambda: torchtally.LightningTallyCallback() is not None,
    "NumbersWatch": lambda: numbers_watch().counts == 0,
    "TallyCallback": lambda: torchtally.TallyCallback() is not None,
    "TallyError": lambda: issubclass(torchtally.TallyError, Exception),
    "Trace": lambda: isinstance(trace, torchtally.Trace),
    "account": lambda: torchtally.account(trace).total.count == len(trace.ops),
    "by": lambda: len(torchtally.by(torchtally.account(trace), "op").rows) == 1,
    "chip": lambda: torchtally.chip("H100-SXM").name == "H100-SXM",
    "declare_cost": lambda: torchtally.declare_cost("a_kernel", flops=1) is None,
    "dtypes": lambda: torchtally.dtypes("0.1")["bf16"][0].value == 0.10009765625,
    "durable": lambda: durable().step == 0,
    "known_chips": lambda: "H100-SXM" in [chip.name for chip in torchtally.known_chips()],
    "monitor": lambda: torchtally.monitor(trace).prediction.chip == "H100-SXM",
    "numbers": lambda: [each.name for each in numbers().tensors] == ["weight", "bias"],
    "record": lambda: ends_too_early(),
    "roofline": lambda: torchtally.roofline("H100-SXM").chip.name == "H100-SXM",
    "run": lambda: len(torchtally.run(train, gpu="H100-SXM").ops) == len(trace.ops) == 1,
    "summary": lambda: refuses_a_number(),
    "tally": lambda: torchtally.tally("gpus H100-SXM").title == "H100-SXM",
    "virtual_gpu": lambda: virtual_gpu(),
}

def refuses_a_number():
    try:
        torchtally.summary(4)
    except torchtally.TallyError:
        return True

def ends_too_early():
    try:
        with torchtally.record("nowhere.json"):
            pass
    except torchtally.TallyError:
        return True

def durable():
    import torch
    return torchtally.durable("nowhere", model=torch.nn.Linear(1, 1))

def numbers():
    import torch
    return torchtally.numbers(torch.nn.Linear(1, 1), ["bf16"])

def numbers_watch():
    import torch
    layer = torch.nn.Linear(1, 1)
    return torchtally.NumbersWatch(layer, torch.optim.SGD(layer.parameters()))

def virtual_gpu():
    with torchtally.virtual_gpu("H100-SXM"):
        train()
    return True

assert sorted(CALLS) == sorted(torchtally.__all__), "a public name is not called"
"""

EVERY_ORDER = """
# Forward and back: whichever of two comes first has come before the other, and after it.
for name in (*CALLS, *CALLS, *reversed(CALLS), *reversed(CALLS)):
    assert CALLS[name](), name
"""


def check_python(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_every_public_name_can_be_called_after_every_other_twice() -> None:
    check_python(CALLS + EVERY_ORDER)


@pytest.mark.thorough
def test_a_name_that_a_module_shadows_is_noticed() -> None:
    """Importing a submodule sets it as an attribute of its package, over the public name."""
    shadow = (
        "import types\ntorchtally.roofline = types.ModuleType('torchtally.roofline')\n"
        "CALLS = {name: CALLS[name] for name in ('chip', 'roofline')}\n"
    )
    with pytest.raises(AssertionError, match="'module' object is not callable"):
        check_python(CALLS + shadow + EVERY_ORDER)


def names_of_rooms(package: Path, names: Collection[str]) -> set[str]:
    """Public names that are also the name of a module or package directly in the package."""
    return {path.stem for path in package.iterdir()} & set(names)


def test_no_public_name_is_the_name_of_a_room() -> None:
    assert names_of_rooms(PACKAGE, torchtally.__all__) == set()


def test_a_public_name_that_is_the_name_of_a_room_is_found(tmp_path: Path) -> None:
    (tmp_path / "roofline").mkdir()
    (tmp_path / "by.py").touch()
    assert names_of_rooms(tmp_path, torchtally.__all__) == {"roofline", "by"}


# Examples --------------------------------------------------------------------------------------

TRAIN = """
import torch

model = torch.nn.Linear(512, 512)

def train():
    for _ in range(2):
        w = torch.nn.Parameter(torch.zeros(8, 8, device="cuda"))
        (w @ w).sum().backward()
        torch.optim.SGD([w]).step()
"""


@pytest.mark.thorough
def test_the_example_of_the_package_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = (torchtally.__doc__ or "").splitlines()
    example = dedent("\n".join(line for line in lines if line.startswith("    ") or not line))
    assert "torchtally.by(" in example
    exec(TRAIN + example, {})
    assert "By line of your code" in capsys.readouterr().out
    assert len(torchtally.Trace.load("run.tally").step_ends) == 2
