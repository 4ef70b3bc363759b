"""Programs that come with the package write what runs today."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.programs.ship import (
    GPU,
    MODES,
    RELEASES,
    SHARDED_MODES,
    asked_of,
    configured_rows,
    in_libraries,
    mode_for,
    type_of,
)
from torchtally.chips import chip
from torchtally.errors import ProgramError
from torchtally.models.config_symbols import symbols_of
from torchtally.models.planned import configured_class
from torchtally.models.recorded import CHECK_LAYERS, record
from torchtally.plan.architecture.known import known_row
from torchtally.programs import write
from torchtally.programs.checked import differences
from torchtally.programs.plain import plain
from torchtally.programs.regime import kernels_of
from torchtally.programs.shipped import FOLDER, key_of, shipped_programs, shipped_step
from torchtally.programs.sizes import Point
from torchtally.programs.step import AskedStep, StepModel
from torchtally.trace import Trace

ALL_BYTES = 3_000_000
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
    "from torchtally.cli import main\n"
    "sys.exit(main(sys.argv[1:]))"
)


def rows() -> list[str]:
    """The known models of which programs are shipped, one of each variant."""
    first: dict[str, str] = {}
    for row in configured_rows():
        shipped = shipped_programs(type_of(row))
        if shipped is not None and row.name in shipped.models:
            first.setdefault(shipped.models[row.name].variant, row.name)
    return list(first.values())


def shipped_and_run(
    name: str, words: tuple[str, ...], batch: int, gpu: str = GPU
) -> tuple[Trace, Trace]:
    """Five layers of a known model at its own sizes: written out, and run."""
    row = known_row(name)
    shipped = shipped_programs(type_of(row))
    assert shipped is not None
    if shipped.releases != RELEASES:
        pytest.skip(f"recorded with {shipped.releases}")
    configured = configured_class(row.config or {}, row.name)
    symbols = symbols_of(configured.config)
    known, asked = shipped.models[name], asked_of(words, batch, gpu)
    assert known.model == StepModel(configured.name, dict(symbols.sizes), symbols.layers)
    assert known.variant == symbols.variant
    sizes = asked.sizes(known.model.sizes)
    program = shipped.program(key_of(known.variant, asked.mode, asked.chip, sizes))
    if program is None:
        pytest.skip("not shipped in this mode")
    program = replace(program, trace=replace(program.trace, chip=gpu))
    mode = mode_for(words, asked)
    run = record(configured.build, symbols, Point({}, {}), sizes, CHECK_LAYERS, mode, asked.chip)
    return write(program, sizes, run.modules, asked.world), in_libraries(plain(run.trace))


@pytest.mark.parametrize(
    ("name", "words"),
    [("Llama 3.2 1B", MODES[0]), ("GPT-2 124M", MODES[0]), ("GPT-2 124M", SHARDED_MODES[1])],
)
def test_it_writes_what_runs_today(name: str, words: tuple[str, ...]) -> None:
    written, run = shipped_and_run(name, words, 2)
    assert list(differences(written, run)) == []
    assert set(written.sites) == set(run.sites)


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "gpu"), [("Llama 3.2 1B", "B200"), ("Mixtral 8x7B", "B200")])
def test_chips_of_one_class_run_the_same_operators(name: str, gpu: str) -> None:
    written, run = shipped_and_run(name, MODES[0], 2, gpu)
    assert list(differences(written, run)) == []


@pytest.mark.thorough
@pytest.mark.parametrize("batch", [2, 1])
@pytest.mark.parametrize("words", [*MODES, *SHARDED_MODES], ids=" ".join)
@pytest.mark.parametrize("name", rows())
def test_all_write_what_runs_today(name: str, words: tuple[str, ...], batch: int) -> None:
    written, run = shipped_and_run(name, words, batch)
    assert list(differences(written, run)) == []


def test_a_known_model_needs_neither_torch_nor_transformers(tmp_path: Path) -> None:
    file = tmp_path / "plan.tally"
    words = ["plan", "llama-3-8b", "--micro-batch", "4", "--recipe", "bf16", "-o"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words, file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "32 layers of LlamaForCausalLM (torch" in done.stderr
    weights = [each for each in Trace.load(file).storages if each.is_trained]
    assert sum(each.requested_bytes for each in weights) == 2 * 8_030_261_248


def request(*, chip_name: str = GPU, batch: int = 2, sequence: int | None = None) -> AskedStep:
    return AskedStep(
        batch=batch, sequence=sequence, usual_sequence=4096, mode=asked_of(MODES[0], 2).mode,
        chip=chip(chip_name), command="plan",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["H200-SXM", "B200"])
def test_a_program_is_for_chips_that_choose_kernels_alike(name: str) -> None:
    written = shipped_step("llama", "Llama 3.2 1B", request(chip_name=name))
    assert written is not None
    assert written.chip == name


@pytest.mark.parametrize(
    ("one", "other", "head_dim", "is_alike"),
    [
        ("H100-SXM", "B200", 128, True),
        ("A100-SXM", "RTX-4090", 128, True),
        ("A100-SXM", "RTX-4090", 256, False),  # 99 KiB of shared memory
        ("H100-SXM", "A100-SXM", 128, False),
        ("MI300X", "MI325X", 128, False),
    ],
)
def test_chips_choose_kernels_by_capabilities(
    one: str, other: str, head_dim: int, is_alike: bool
) -> None:
    words = [kernels_of(chip(name), {"head_dim": head_dim}) for name in (one, other)]
    assert (words[0] == words[1]) is is_alike


@pytest.mark.parametrize(
    "asked",
    [request(sequence=100), request(chip_name="V100-SXM-16GB"), request(sequence=1 << 20)],
    ids=["no multiple of 64", "another generation", "more than its positions"],
)
def test_what_it_does_not_cover_is_recorded(asked: AskedStep) -> None:
    assert shipped_step("llama", "Llama 3.2 1B", asked) is None
    assert shipped_step("llama", "no such model", asked) is None
    assert shipped_step("no_such_type", "Llama 3.2 1B", asked) is None


def test_a_regime_is_in_the_key() -> None:
    sizes = {"batch": 2, "sequence": 4096, "head_dim": 128, "window": 8192, "vocabulary": 50257}
    keys = {
        key_of("", "", chip(GPU), {**sizes, **changes})
        for changes in (
            {}, {"batch": 1}, {"sequence": 4104}, {"head_dim": 256}, {"window": 1024},
            {"window": 4096}, {"vocabulary": 50304},
        )
    }  # fmt: skip
    assert len(keys) == 7
    assert key_of("", "", chip(GPU), {**sizes, "batch": 8, "sequence": 1024}) in keys


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.glob("*.programs")) < ALL_BYTES


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtally.programs.shipped.FOLDER", tmp_path)
    (tmp_path / "damaged.programs").write_bytes(b"torchtally")
    with pytest.raises(ProgramError, match=r"damaged\.programs: not a file of torchtally"):
        shipped_programs("damaged")
