"""The cases run, the collector keeps what it sees, and the comparison finds what is wrong."""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Generator

from tests.truth import collect
from tests.truth.cases import CASES, Case, case_of
from tests.truth.collect import CaseError, Corpus, Entry, read_corpus, settings
from tests.truth.compare import (
    NO_GPU,
    STAND_IN,
    Row,
    accuracy_markdown,
    below_parity,
    compare,
    corpora,
    predict,
    whole_page,
)
from tests.truth.measure import PHASES, Measurement, about, measure, phase_after
from tests.warm import commands
from torchtally.chips import chip
from torchtally.errors import UnknownChipError
from torchtally.trace.storage import allocated_bytes
from torchtally.virtual.session import virtual_gpu

pytestmark = pytest.mark.one_case_in(4)

ROOT = Path(__file__).parents[2]
H100 = chip("H100-SXM")
ALL = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


OF_EACH_KIND = {
    (type(case.model), getattr(case.model, "experts", 0), case.precision): case
    for case in reversed(CASES)
}.values()
"""The first of each model and precision; all of them run at their size where they are compared."""


# The cases ------------------------------------------------------------------------------------


def phases_of(case: Case) -> list[str]:
    return [*PHASES[:2] * case.accumulation, *PHASES[2:]]


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 16


@pytest.mark.one_case_in(6)
@ALL
def test_a_case_runs_on_the_host(case: Case) -> None:
    if case.needs_gpu:
        pytest.skip("the host lacks a kernel")
    seen = measure(case.small(), "cpu", steps=1)
    assert [mark.phase for mark in seen.steps[0].marks] == phases_of(case)
    # Nobody knows is not nothing.
    assert seen.available_bytes is None
    assert seen.peak_allocated_bytes is None
    assert seen.peak_reserved_bytes is None
    assert {mark.allocated_bytes for mark in seen.steps[0].marks} == {None}


@pytest.mark.one_case_in(6)
@pytest.mark.parametrize("case", OF_EACH_KIND, ids=lambda case: case.name)
def test_a_case_runs_on_the_virtual_gpu(case: Case) -> None:
    small = case.small()
    with virtual_gpu(H100):
        seen = measure(small, "cuda", steps=1)
    assert seen.build is not None
    assert seen.build.allocated_bytes is not None
    marks = seen.steps[0].marks
    assert [mark.phase for mark in marks] == phases_of(case)
    assert seen.peak_allocated_bytes is not None
    assert seen.peak_reserved_bytes is not None
    held = [mark.allocated_bytes or 0 for mark in (seen.build, *marks)]
    assert seen.peak_allocated_bytes >= max(held) > 0
    assert seen.peak_reserved_bytes >= seen.peak_allocated_bytes
    itemsize = 2 if case.precision == "bf16" else 4
    model = small.model.build()
    buffers = sum(allocated_bytes(buffer.nbytes) for buffer in model.buffers())
    weights = sum(allocated_bytes(parameter.numel() * itemsize) for parameter in model.parameters())
    assert seen.build.allocated_bytes >= weights
    if not any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        assert seen.build.allocated_bytes == weights + buffers


@pytest.mark.parametrize("name", ["mixture-fp32", "bert-base-fp16", "t5-base-adafactor"])
def test_no_size_depends_on_values(name: str) -> None:
    """What is saved for the backward pass, whatever the tokens are and wherever they are sent."""
    case = replace(case_of(name).small(), batch=4)

    def saved(seed: int) -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(tensor.shape))
            return tensor

        torch.manual_seed(seed)
        model = case.model.build()
        inputs = case.model.sample(case.batch, case.sequence, Generator().manual_seed(seed))
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(*inputs)
        return shapes

    assert saved(1) == saved(2) != []


def test_where_memory_ran_out() -> None:
    """The phase after the last that ended, with as many batches as the case accumulates."""
    case = replace(CASES[0], accumulation=2)
    with virtual_gpu(H100):
        marks = measure(case.small(), "cuda", steps=1).steps[0].marks
    ran_out_in = [phase_after(marks[:ended], case) for ended in range(len(marks))]
    assert ran_out_in == ["forward", "backward", "forward", "backward", "optimizer", "zero_grad"]


@pytest.mark.parametrize("ended", range(5))
def test_out_of_memory_is_a_measurement(ended: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """When `ended` phases of the second step have ended; 4: while the model is built."""
    case = CASES[0].small()
    training = case.train(torch.device("cpu"))
    steps = 0

    def step(mark: object) -> None:
        nonlocal steps
        steps += 1
        done = 4 if steps == 1 else ended
        for phase in PHASES[:done]:
            mark(phase)  # type: ignore[operator]
        if done < 4:
            raise torch.OutOfMemoryError

    def train(self: Case, device: torch.device) -> object:
        if ended == 4:
            raise torch.OutOfMemoryError
        return training

    monkeypatch.setattr(training, "step", step)
    monkeypatch.setattr(Case, "train", train)
    seen = measure(case, "cpu", with_times=True)
    assert seen.out_of_memory
    assert (seen.times, seen.times_error) == (None, None)
    assert seen.stopped_in == (f"step 2, {PHASES[ended]}" if ended < 4 else "build")
    assert [len(step.marks) for step in seen.steps] == ([4, ended] if ended < 4 else [])
    assert Measurement.from_json(json.loads(json.dumps(seen.to_json()))) == seen


# The collector --------------------------------------------------------------------------------

SMALL = tuple(case_of(name) for name in ("gpt2-tiny", "resnet50-fp32", "bert-large-accumulation"))


def on_virtual_gpu(case: Case) -> Measurement:
    return predict(case.small(), H100)


def begun(kind: str = "gpu") -> Corpus:
    with virtual_gpu(H100):
        return Corpus(kind, about("cuda") | {"driver": None}, is_small=True)


def collected(
    path: Path, cases: Sequence[Case] = SMALL, kind: str = "gpu", run: object = on_virtual_gpu
) -> Corpus:
    """A corpus whose truth is the prediction itself."""
    collect.collect(begun(kind), cases, run, path, print)  # type: ignore[arg-type]
    return read_corpus(path)


@pytest.mark.thorough
def test_a_corpus_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "made" / "it.json"
    corpus = collected(path)
    assert [entry.name for entry in corpus.entries] == [case.name for case in SMALL]
    assert [entry.measurement for entry in corpus.entries] == [
        on_virtual_gpu(case) for case in SMALL
    ]
    assert corpus.about["device"] == corpus.device == H100.device_name
    assert corpus.about["total_memory_bytes"] == H100.total_memory_bytes
    before = path.read_bytes()
    corpus.write(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["it.json"]


@pytest.mark.parametrize("spoilt", ["", "{}", "[]", "null", '{"format": 2}'])
def test_what_is_no_corpus_is_refused(spoilt: str, tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    path.write_text(spoilt)
    with pytest.raises(ValueError, match="not a corpus"):
        read_corpus(path)


def failing(case: Case) -> Measurement:
    if case.name == "resnet50-fp32":
        raise CaseError("no such kernel")
    return on_virtual_gpu(case)


@pytest.mark.thorough
def test_a_case_that_fails_is_recorded_and_stops_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = collected(tmp_path / "it.json", run=failing)
    assert [entry.error for entry in corpus.entries] == [None, "no such kernel", None]
    assert [entry.measurement is None for entry in corpus.entries] == [False, True, False]
    assert "resnet50-fp32" in capsys.readouterr().out
    assert [row.name for row in compare(corpus)] == [SMALL[0].name, SMALL[2].name]
    assert "resnet50-fp32: not measured: no such kernel" in accuracy_markdown(
        [(corpus, compare(corpus))]
    )


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "it.json"

    def interrupted(case: Case) -> Measurement:
        if case is SMALL[2]:
            raise KeyboardInterrupt
        return failing(case)

    with pytest.raises(KeyboardInterrupt):
        collected(path, run=interrupted)
    # What failed is tried again.
    assert [entry.name for entry in collect.resumed(begun(), path).entries] == ["gpt2-tiny"]
    other = begun()
    other.about["torch"] = "1.0"
    with pytest.raises(ValueError, match="cannot be resumed: its about"):
        collect.resumed(other, path)


def test_the_command_without_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process for each case, to its end."""
    monkeypatch.setattr(sys, "executable", str(commands() / "python"))
    path = tmp_path / "it.json"
    arguments = ["--device", "cpu", "--only", "gpt2-tiny", "--output", str(path), "--no-times"]
    assert collect.main(arguments) == 0
    assert "[ 1/1] gpt2-tiny" in (said := capsys.readouterr().out)
    assert "peaks unknown" in said
    corpus = read_corpus(path)
    [entry] = corpus.entries
    assert entry.settings == settings(CASES[0].small())
    assert entry.measurement is not None
    assert entry.measurement.peak_allocated_bytes is None
    assert entry.measurement.times is None
    assert (
        json.loads(path.read_text())["memory"] == "unknown on the host: all of its figures are null"
    )
    with pytest.raises(ValueError, match="no figures of memory"):
        compare(corpus)


@pytest.mark.thorough
def test_a_process_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(commands() / "python"))
    with pytest.raises(CaseError, match="there is no case 'none'"):
        collect.answer(["none"])
    with pytest.raises(CaseError, match=r"longer than 0\.01 s"):
        collect.answer(["--about"], timeout_s=0.01)


def test_a_failure_is_in_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collect, "in_process_of_its_own", lambda device, answer, **options: failing)
    path = tmp_path / "it.json"
    assert collect.run_all(begun(), SMALL[:1], path, "cuda") == 0
    assert collect.run_all(begun(), SMALL, path, "cuda") == 1
    assert "1 failed: resnet50-fp32" in capsys.readouterr().err


def test_what_the_command_refuses(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collect.main(["--only", "nothing"]) == 2
    assert "no case is named like 'nothing'" in capsys.readouterr().err

    def refused(*arguments: object) -> None:
        raise CaseError("no CUDA")

    monkeypatch.setattr(collect, "answer", refused)
    assert collect.main([]) == 2
    assert "--device cpu proves" in capsys.readouterr().err


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert collect.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == [case.name for case in CASES]
    assert collect.main(["--list", "--only", "vit"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + sum(
        "vit" in case.name for case in CASES
    )


# The comparison -------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_prediction_agrees_with_itself(tmp_path: Path) -> None:
    rows = compare(collected(tmp_path / "it.json"))
    assert {row.allocated_ratio for row in rows} == {row.reserved_ratio for row in rows} == {1.0}
    assert {ratio for row in rows for ratio in row.phase_ratios.values()} == {1.0}
    assert [phase_ratio for row in rows for phase_ratio in row.phase_ratios] == 3 * [
        "build",
        *PHASES,
    ]
    assert below_parity(rows) == []


def scaled(entry: Entry, *, allocated: float = 1.0, reserved: float = 1.0) -> Entry:
    """The entry with other peaks in its second step, where the largest are."""
    assert entry.measurement is not None
    steps = list(entry.measurement.steps)
    steps[1:] = [
        replace(
            step,
            peak_allocated_bytes=int((step.peak_allocated_bytes or 0) * allocated),
            peak_reserved_bytes=int((step.peak_reserved_bytes or 0) * reserved),
        )
        for step in steps[1:]
    ]
    return replace(entry, measurement=replace(entry.measurement, steps=tuple(steps)))


@pytest.mark.parametrize(
    ("allocated", "reserved", "expected"),
    [
        (1.029, 1.0, []),
        (1.04, 1.0, ["resnet50-fp32: peak allocated is 3.85 % off, limit 3 %"]),
        (1.0, 1.04, []),
        (1.0, 1.06, ["resnet50-fp32: peak reserved is 5.66 % off, limit 5 %"]),
    ],
)
def test_a_wrong_number_is_found(
    allocated: float, reserved: float, expected: list[str], tmp_path: Path
) -> None:
    corpus = collected(tmp_path / "it.json")
    corpus.entries[1] = scaled(corpus.entries[1], allocated=allocated, reserved=reserved)
    assert below_parity(compare(corpus)) == expected
    for sentence in expected or ["None."]:
        assert sentence in accuracy_markdown([(corpus, compare(corpus))])


def test_a_median_beyond_its_limit_is_found(tmp_path: Path) -> None:
    corpus = collected(tmp_path / "it.json")
    corpus.entries[:2] = [scaled(entry, allocated=1.02) for entry in corpus.entries[:2]]
    [miss] = below_parity(compare(corpus))
    assert miss == "peak allocated is 1.96 % off in the median, limit 1 %"


def test_a_false_verdict_is_found(tmp_path: Path) -> None:
    [entry] = collected(tmp_path / "it.json", SMALL[:1]).entries
    fits = entry.measurement
    assert fits is not None
    ran_out = replace(fits, out_of_memory=True, stopped_in="step 2, forward")
    assert below_parity([Row("it", ran_out, fits)]) == [
        "it: said to fit, and ran out in step 2, forward"
    ]
    assert below_parity([Row("it", fits, ran_out)]) == ["it: said not to fit, and did"]
    assert below_parity([Row("it", ran_out, ran_out)]) == []
    full = replace(fits, available_bytes=(fits.peak_reserved_bytes or 0) - 1)
    assert below_parity([Row("it", full, fits)]) == ["it: said not to fit, and did"]
    assert Row("it", ran_out, fits).allocated_ratio is None


def test_a_case_that_changed_since_is_refused(tmp_path: Path) -> None:
    corpus = collected(tmp_path / "it.json", SMALL[:1])
    [entry] = corpus.entries
    corpus.entries = [replace(entry, settings=entry.settings | {"batch": 3})]
    with pytest.raises(ValueError, match="gpt2-tiny is not the case that was measured: batch"):
        compare(corpus)
    corpus.entries = [replace(entry, name="gone")]
    with pytest.raises(ValueError, match="there is no case 'gone'"):
        compare(corpus)
    corpus.entries, corpus.about = [entry], corpus.about | {"device": "Voodoo 2"}
    with pytest.raises(UnknownChipError):
        compare(corpus)


def test_the_page_says_what_was_not_measured(tmp_path: Path) -> None:
    assert NO_GPU in accuracy_markdown([])
    stand_in = collected(tmp_path / "stand-in.json", kind="stand-in")
    page = accuracy_markdown([(stand_in, compare(stand_in))])
    assert NO_GPU in page
    assert STAND_IN in page
    gpu = collected(tmp_path / "gpu.json")
    assert STAND_IN not in (page := accuracy_markdown([(gpu, compare(gpu))]))
    assert NO_GPU not in page
    assert max(map(len, page.splitlines())) <= 100
    for wanted in (
        gpu.device,
        gpu.date[:10],
        f"torch {torch.__version__.partition('+')[0]}",
        *map(str, PHASES),
    ):
        assert wanted in page


# The truth ------------------------------------------------------------------------------------


def predicted_with(page: str) -> list[str]:
    return re.findall(r"predicted with torch ([\d.]+)", page)


def test_predictions_of_some_cases_agree_with_what_was_measured() -> None:
    committed = [corpus for corpus in corpora().values() if corpus.kind != "cpu"]
    assert committed
    for corpus in committed:
        measured = [entry for entry in corpus.entries if entry.measurement]
        assert below_parity(compare(replace(corpus, entries=measured[::48]))) == []


KNOWN_MISS = "resnet50-fp32: peak reserved is 6.74 % off, limit 5 %"
"""On the card convolutions in TF32 reserve 0.44 GiB more than by the stand-in, with which tally
agrees to the byte: workspaces of other kernels, which only cuDNN on the card chooses."""


@pytest.mark.thorough("test_predictions_of_some_cases_agree_with_what_was_measured")
def test_predictions_agree_with_what_was_measured() -> None:
    committed = corpora()
    if not committed:
        pytest.skip("no corpus has been collected yet")
    rows = {name: compare(corpus) for name, corpus in committed.items()}
    misses = [miss for row in rows.values() for miss in below_parity(row)]
    assert misses == [KNOWN_MISS]
    page = accuracy_markdown([(committed[name], rows[name]) for name in committed])
    page = whole_page(page)
    shown = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    if predicted_with(shown) == predicted_with(page):  # other versions may allocate otherwise
        # Steps are predicted for some cases alone: test_times.py.
        assert without_steps(page) == without_steps(shown), "bring the page up to date: make docs"


def without_steps(page: str) -> str:
    return re.sub(r"### Step times\n.*?(?=\n## )", "", page, flags=re.DOTALL)
