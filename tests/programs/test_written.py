"""A run written out of recordings of three layers is the run of all layers."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from tests.programs.families import FAMILIES, GPU, LAYERS, program_of_family, run_of, written_out
from torchtally import account
from torchtally.chips import chip
from torchtally.errors import ProgramError
from torchtally.memory import Category, is_alive
from torchtally.models.config_symbols import symbols_of
from torchtally.programs import write
from torchtally.timing.roofline import Roofline
from torchtally.trace import Phase, Trace


class Figures(NamedTuple):
    """What a plan answers with, of the reported step; memory of the whole run."""

    operators: int
    flops: int
    bytes: int
    kept_bytes: int
    peak_bytes: int
    reserved_bytes: int
    seconds: float


def figures(trace: Trace) -> Figures:
    ledger = account(trace, roofline=Roofline(chip(GPU)))
    ledger.check()
    first, _ = trace.steady_step
    backward = min(e.op.clock for e in ledger.reported if e.op.phase is Phase.BACKWARD)
    pairs = zip(ledger.memory.storages, ledger.memory.categories, strict=True)
    return Figures(
        ledger.total.count,
        ledger.total.flops,
        ledger.total.bytes,
        sum(
            storage.requested_bytes
            for storage, category in pairs
            if category is Category.ACTIVATIONS
            and storage.born >= first
            and is_alive(storage, backward - 1)
        ),
        ledger.memory.peak_bytes,
        max(each.bytes for each in trace.reserved),
        ledger.step_s,
    )


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("name", FAMILIES)
def test_it_is_the_run_of_a_script(name: str) -> None:
    """At sizes and a number of layers that no recording had: to a millionth, and all but the
    reserved bytes to the bit.
    """
    written, own = figures(written_out(name)), figures(run_of(name))
    assert written == pytest.approx(own, rel=1e-6)


def test_every_layer_has_its_own_modules_and_parameters() -> None:
    trace = written_out("llama")
    modules = {site.module for site in trace.sites}
    parameters = {storage.name for storage in trace.storages}
    for layer in range(LAYERS):
        assert f"model.layers.{layer}.mlp.up_proj" in modules
        assert f"model.layers.{layer}.mlp.up_proj.weight" in parameters
    assert f"model.layers.{LAYERS}.mlp.up_proj" not in modules


def test_a_layer_more_is_a_layers_work_more() -> None:
    """Model FLOPs of a layer do not depend on how many there are."""
    program = program_of_family("llama")
    sizes = symbols_of(FAMILIES["llama"].configuration).sizes | FAMILIES["llama"].asked
    totals = [account(write(program, sizes, layers)).total.flops for layers in (3, 4, 40)]
    layer = totals[1] - totals[0]
    assert totals[2] - totals[0] == pytest.approx(37 * layer, rel=1e-9)


def test_writing_needs_no_torch(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(msgspec.msgpack.encode(program_of_family("llama")))
    sizes = symbols_of(FAMILIES["llama"].configuration).sizes | FAMILIES["llama"].asked
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import msgspec\n"
        "from torchtally.ledger import account\n"
        "from torchtally.programs import RunProgram, write\n"
        f"packed = open({str(program)!r}, 'rb').read()\n"
        f"trace = write(msgspec.msgpack.decode(packed, type=RunProgram), {sizes}, {LAYERS})\n"
        "print(account(trace).total.flops)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == account(written_out("llama")).total.flops


@pytest.mark.parametrize(
    ("sizes", "layers", "message"),
    [
        ({"batch": 1}, 6, "multiples of 1 from 2 on for batch, got 1"),
        ({"sequence": 250}, 6, "multiples of 64 from 2 on for sequence, got 250"),
        ({}, 2, "at least 3 layers, got 2"),
    ],
)
def test_what_was_not_recorded_is_refused(sizes: dict[str, int], layers: int, message: str) -> None:
    own = symbols_of(FAMILIES["llama"].configuration).sizes | FAMILIES["llama"].asked
    with pytest.raises(ProgramError, match=message):
        write(program_of_family("llama"), {**own, **sizes}, layers)


def test_a_fixed_size_is_the_recorded_one() -> None:
    program = replace(program_of_family("llama"), fixed={"window": 1})
    own = symbols_of(FAMILIES["llama"].configuration).sizes | FAMILIES["llama"].asked
    with pytest.raises(ProgramError, match="recorded at window 1 alone, got 7"):
        write(program, {**own, "window": 7}, 3)
