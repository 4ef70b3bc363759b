"""A recorded program is kept for the next step of its configuration."""

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replaced

from tests.programs.families import FAMILIES, GPU, LLAMA, program_of_family, written_out
from torchtally.chips import chip
from torchtally.models.config_symbols import symbols_of
from torchtally.programs import cached
from torchtally.programs.cached import PROGRAM, cache_file, cached_step, keep_program, keep_trace
from torchtally.programs.checked import differences
from torchtally.programs.step import AskedStep, StepModel

VALUES = {**LLAMA, "model_type": "llama"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "torchtally" / "programs"


def request(**changes: Any) -> AskedStep:
    asked = {
        "batch": 2, "sequence": 256, "usual_sequence": 4096, "mode": "recipe bf16",
        "chip": chip(GPU), "command": "plan",
    }  # fmt: skip
    return AskedStep(**(asked | changes))


def keep(asked: AskedStep) -> None:
    symbols = symbols_of(FAMILIES["llama"].configuration)
    model = StepModel("LlamaForCausalLM", dict(symbols.sizes), symbols.layers)
    sizes = asked.sizes(model.sizes)
    keep_program(program_of_family("llama"), model, sizes, VALUES, asked)


def test_it_is_written_again_as_it_was(folder: Path) -> None:
    assert cached_step(VALUES, request()) is None
    keep(request())
    written = cached_step(VALUES, request())
    assert written is not None
    own = written_out("llama")
    assert list(differences(replaced(written, notes=own.notes), own)) == []
    assert "recorded before" in written.notes[0].text
    assert [path.suffix for path in folder.iterdir()] == [".programs"]


def test_what_a_recording_follows_from_is_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache_file(VALUES, request(), PROGRAM)
    others = [
        cache_file(VALUES | {"hidden_act": "gelu"}, request(), PROGRAM),
        cache_file(VALUES, request(batch=1), PROGRAM),
        cache_file(VALUES, request(sequence=250), PROGRAM),
        cache_file(VALUES, request(mode="recipe amp"), PROGRAM),
        cache_file(VALUES, request(chip=chip("A100-SXM")), PROGRAM),
    ]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    others.append(cache_file(VALUES, request(), PROGRAM))
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    monkeypatch.setattr(cached, "releases", lambda: "torch 0.1")
    others.append(cache_file(VALUES, request(), PROGRAM))
    monkeypatch.undo()
    monkeypatch.setattr(cached, "source_digest", lambda: "other")
    others.append(cache_file(VALUES, request(), PROGRAM))
    assert len({first.name, *(other.name for other in others)}) == 1 + len(others)


def test_a_damaged_file_is_recorded_again() -> None:
    keep(request())
    path = cache_file(VALUES, request(), PROGRAM)
    path.write_bytes(path.read_bytes()[:-1])
    assert cached_step(VALUES, request()) is None
    keep(request())
    assert cached_step(VALUES, request()) is not None


def test_the_folder_is_bounded(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    keep(request(mode="first"))
    (first,) = folder.iterdir()
    monkeypatch.setattr(cached, "MOST_BYTES", 2 * first.stat().st_size)
    for number, mode in enumerate(("first", "second", "third")):
        keep(request(mode=mode))
        os.utime(cache_file(VALUES, request(mode=mode), PROGRAM), (number, number))
    keep(request(mode="fourth"))
    assert {path.name for path in folder.iterdir()} == {
        cache_file(VALUES, request(mode=mode), PROGRAM).name for mode in ("third", "fourth")
    }


def test_a_run_of_all_layers_is_kept_as_it_is() -> None:
    run = written_out("llama")
    keep_trace(run, VALUES, request())
    assert cached_step(VALUES, request(command="again")) == replaced(run, script="again")


def test_a_folder_that_cannot_be_written_costs_time_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep(request())
    assert cached_step(VALUES, request()) is None
