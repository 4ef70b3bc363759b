"""How long steps take: what is timed, what the profiler saw, and what has no times."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from tests.truth import collect, measure, timing
from tests.truth.cases import CASES, Training, case_of
from tests.truth.collect import CaseError, Corpus, Entry, read_corpus, settings
from tests.truth.compare import (
    LOST,
    REAL_TRACES,
    PredictedStep,
    StepTime,
    accuracy_markdown,
    compare,
    corpora,
    kernels_section,
    predict,
    predict_step,
    step_times,
    steps_table,
)
from tests.truth.measure import PHASES, Measurement
from tests.truth.profiled import Kernel, OperatorTime, operator_times, short
from tests.truth.timing import Gauge, Times, Watch, gauge, is_settled, is_warm, steps_within
from tests.warm import commands
from torchtally.chips import chip
from torchtally.virtual.session import virtual_gpu

H100 = chip("H100-SXM")
TINY = CASES[0].small()


# Steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        ([], False),
        ([21.0], True),  # too slow for more
        ([1.0] * 5, False),  # too few
        ([0.5] * 6, True),
        ([0.1] * 9, False),  # 0.9 s
        ([0.1] * 11, True),
        ([0.3, 0.3, 0.3, 0.25, 0.25, 0.25], False),  # still getting faster
        ([0.5, 0.5, 0.5, 0.495, 0.495, 0.495], True),
        ([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3], True),  # never settles: over 2 s
    ],
)
def test_when_a_warm_up_ends(step_s: list[float], expected: bool) -> None:
    assert is_warm(step_s) is expected


def test_what_is_settled() -> None:
    assert not is_settled([1.0] * 5)  # nothing to compare the last three with
    assert is_settled([9.0, *[1.0] * 3, *[1.019] * 3])
    assert not is_settled([*[1.0] * 3, *[1.021] * 3])


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.001, 20), (0.1, 20), (0.2, 10), (0.5, 4), (1.0, 3), (50.0, 3)]
)
def test_slow_steps_are_fewer(step_s: float, steps: int) -> None:
    """Half of 4 s for the single ones."""
    assert steps_within(step_s) == steps


class Clock:
    """Says what it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


PHASE_S = {"forward": 0.25, "backward": 0.5, "optimizer": 0.125, "zero_grad": 0.0625}


def fake(clock: Clock, accumulation: int = 1, slower: Sequence[float] = ()) -> Watch:
    """Steps of known length; the first ones slower by a factor each."""
    case = replace(TINY, accumulation=accumulation)
    training = case.train(torch.device("cpu"))
    factors: Iterator[float] = iter(slower)

    def step(mark: Callable[[str], None], batches: object = None) -> None:
        factor = next(factors, 1.0)
        for phase in [*PHASES[:2] * accumulation, *PHASES[2:]]:
            clock.now_s += PHASE_S[phase] * factor
            mark(phase)

    training.step = step  # type: ignore[method-assign]
    return Watch(training, clock)


def test_steps_are_timed_by_the_clock() -> None:
    """0.9375 s each: 6 warm up, and the fewest, 3, are timed singly and 3 in a row."""
    seen = timing.time_steps(fake(Clock()))
    assert seen == Times(
        warm_up_steps=6,
        is_settled=True,
        step_s=(0.9375,) * 3,
        phase_s=PHASE_S,
        stretch_steps=3,
        stretch_step_s=0.9375,
        gauge=None,
    )
    assert seen.median_step_s == 0.9375


def test_batches_are_added_up_and_outliers_are_not() -> None:
    """A step of two batches takes 0.75 s more; one step of the timed ones takes twice as long."""
    seen = timing.time_steps(fake(Clock(), 2, [1, 1, 1, 1, 1, 1, 2]))
    assert seen.phase_s == PHASE_S | {"forward": 0.5, "backward": 1.0}
    assert seen.step_s == (3.375, 1.6875, 1.6875)
    assert seen.median_step_s == 1.6875


def test_no_batch_is_drawn_while_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = 0
    batch = Training.batch

    def counted(self: Training) -> list[torch.Tensor]:
        nonlocal drawn
        drawn += 1
        return batch(self)

    monkeypatch.setattr(Training, "batch", counted)
    watch = Watch(replace(TINY, accumulation=2).train(torch.device("cpu")))
    for _ in range(3):
        watch.single()
    watch.stretch(2)
    assert drawn == 2


# What the timing leaves alone -----------------------------------------------------------------


def without_clock(seen: Measurement) -> Measurement:
    """Only what does not depend on how fast the machine is."""
    steps = tuple(replace(step, seconds=0.0) for step in seen.steps)
    return replace(seen, steps=steps, times=None, times_error=None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps; and a virtual GPU, which does not say how long its events are apart, says 1 ms."""
    monkeypatch.setattr(timing, "WARM_UP_LIMIT_S", 0.0)
    monkeypatch.setattr(timing, "STEPS", 3)
    monkeypatch.setattr(timing, "between", lambda before, after: 0.001)


@pytest.mark.thorough
@pytest.mark.usefixtures("quick")
def test_the_timing_is_in_no_figure_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of steps that hold 1 GiB more while they are timed."""
    case = case_of("bert-base-fp16").small()
    with virtual_gpu(H100):
        alone = measure.measure(case, "cuda")
    run = Watch.run

    def run_with_more(self: Watch, mark: Callable[[str], None] = lambda phase: None) -> None:
        held = torch.empty(2**30, dtype=torch.uint8, device=self.device)
        run(self, mark)
        del held

    monkeypatch.setattr(Watch, "run", run_with_more)
    with virtual_gpu(H100):
        seen = measure.measure(case, "cuda", with_times=True)
        assert torch.cuda.max_memory_allocated() > 2**30
    assert seen.times is not None
    assert seen.times.phase_s == dict.fromkeys(PHASES, 0.001)
    assert without_clock(seen) == without_clock(alone)
    assert (seen.peak_allocated_bytes or 0) < 2**30


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("ends_in", ["warm_up", "profiled"])
def test_what_ends_the_timing_costs_nothing_seen_before(
    ends_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(self: Watch) -> object:
        raise torch.OutOfMemoryError("out of memory\nmore about it")

    monkeypatch.setattr(Watch, ends_in, ended)
    seen = measure.measure(TINY, "cpu", with_times=True)
    assert len(seen.steps) == 3
    assert not seen.out_of_memory
    assert seen.times_error == "out of memory"
    assert (seen.times is None) is (ends_in == "warm_up")
    assert seen.times is None or seen.times.operators is None
    assert "TIMES INCOMPLETE: out of memory" in collect.seen(seen)
    assert Measurement.from_json(json.loads(json.dumps(seen.to_json()))) == seen


def test_a_process_that_its_timing_kills_is_run_again_without() -> None:
    calls = []
    plain = measure.measure(TINY, "cpu", steps=1)

    def answer(arguments: Sequence[str], timeout_s: float) -> object:
        calls.append(list(arguments))
        if "--times" in arguments:
            raise CaseError("killed by SIGSEGV")
        return plain.to_json()

    seen = collect.in_process_of_its_own("cuda", answer, with_times=True)(CASES[0])  # type: ignore[arg-type]
    assert seen == replace(plain, times_error="killed by SIGSEGV")
    assert calls == [
        ["gpt2-tiny", "--device", "cuda", "--times"],
        ["gpt2-tiny", "--device", "cuda"],
    ]


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [("gpu", {}, True), ("gpu", {"with_times": False}, False), ("stand-in", {}, False)],
)
def test_a_stand_in_is_never_timed(
    kind: str,
    options: dict[str, bool],
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = []

    def runner(device: str, answer: object, *, with_times: bool) -> object:
        wanted.append(with_times)
        return lambda case: predict(TINY, H100)

    monkeypatch.setattr(collect, "in_process_of_its_own", runner)
    about = {"device": H100.device_name, "torch": "2"}
    collect.run_all(Corpus(kind, about), CASES[:1], tmp_path / "it.json", "cuda", **options)
    assert wanted == [expected]


# The profiler ---------------------------------------------------------------------------------


@dataclass
class Recorded:
    """An event as the profiler's, in nanoseconds."""

    called: str
    start: int
    end: int
    number: int = 0
    linked: int = 0
    device: DeviceType = DeviceType.CPU
    sizes: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    is_annotation: bool = False
    thread: int = 1

    def name(self) -> str:
        return self.called

    def device_type(self) -> DeviceType:
        return self.device

    def start_ns(self) -> int:
        return self.start

    def end_ns(self) -> int:
        return self.end

    def duration_ns(self) -> int:
        return self.end - self.start

    def start_thread_id(self) -> int:
        return self.thread

    def end_thread_id(self) -> int:
        return self.thread

    def correlation_id(self) -> int:
        return self.number

    def linked_correlation_id(self) -> int:
        return self.linked

    def is_user_annotation(self) -> bool:
        return self.is_annotation

    def shapes(self) -> list[list[int]]:
        return [list(size) for size in self.sizes]

    def dtypes(self) -> list[str]:
        return list(self.types)


MATRICES = {"sizes": ((8, 4), (4, 2), (), ()), "types": ("c10::BFloat16", "float", "Scalar", "")}


def on_gpu(name: str, duration: int, linked: int, *, is_annotation: bool = False) -> Recorded:
    return Recorded(name, 0, duration, 900, linked, DeviceType.CUDA, is_annotation=is_annotation)


def test_kernels_belong_to_the_operator_that_launched_them() -> None:
    """Two steps: mm twice, each with a product of 600 ns and one sum of 200 ns."""
    step = [
        Recorded("Optimizer.step#SGD.step", 0, 9000, 7, is_annotation=True),
        on_gpu("Optimizer.step#SGD.step", 5000, 7, is_annotation=True),
        Recorded("aten::linear", 0, 900, 11, **MATRICES),  # type: ignore[arg-type]
        Recorded("aten::mm", 100, 800, 12, **MATRICES),  # type: ignore[arg-type]
        # CUDA's own calls have numbers of their own, which may be those of operators.
        Recorded("cudaLaunchKernel", 200, 300, 500, 12),
        Recorded("cudaStreamSynchronize", 8000, 8500, 12),
        Recorded("cuLaunchKernelEx", 8000, 8500, 12),
        on_gpu("void gemm<float>(float*, int)", 600, 12),
        on_gpu("void reduce<float>(float*)", 200, 12),
        on_gpu("Memcpy HtoD (Pageable -> Device)", 50, 0),
    ]
    again = [
        replace(recorded, number=recorded.number + 100) if recorded.number in (11, 12) else recorded
        for recorded in step
    ]
    again = [
        replace(recorded, linked=112) if recorded.linked == 12 else recorded for recorded in again
    ]
    assert operator_times([*step, *again], 2, is_gpu=True) == [
        OperatorTime(
            "aten::mm",
            ((8, 4), (4, 2)),
            ("bfloat16", "float32"),
            1.0,
            800e-9,
            (Kernel("gemm<float>", 1.0, 600e-9), Kernel("reduce<float>", 1.0, 200e-9)),
        ),
        OperatorTime(
            None, (), (), 0.0, 50e-9, (Kernel("Memcpy HtoD (Pageable -> Device)", 1.0, 50e-9),)
        ),
    ]


def test_on_the_host_an_operator_has_what_those_within_it_have_not() -> None:
    events = [
        Recorded("AddBackward0", 0, 1000, 1),
        Recorded("aten::linear", 100, 900, 2),  # 800 - 300 - 200
        Recorded("aten::mm", 200, 500, 3),
        Recorded("aten::add", 600, 800, 4),  # 200 - 50
        Recorded("aten::empty", 600, 650, 5),
        Recorded("aten::mm", 650, 750, 6, thread=2),  # another thread's, and in nothing
    ]
    rows = operator_times(events, 1, is_gpu=False)
    assert {row.name: (row.calls, row.self_s) for row in rows} == {
        "aten::mm": (2, 400e-9),
        "aten::linear": (1, 300e-9),
        "aten::add": (1, 150e-9),
        "aten::empty": (1, 50e-9),
    }
    assert [row.name for row in rows][:2] == ["aten::mm", "aten::linear"]


def test_rows_agree_with_the_profilers_own_table() -> None:
    """Its sums by operator, in microseconds."""
    training = TINY.train(torch.device("cpu"))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        training.step(lambda phase: None)
    events = profiler.profiler.kineto_results.events()
    calls: dict[str | None, float] = {}
    self_s: dict[str | None, float] = {}
    for row in operator_times(events, 1, is_gpu=False):
        calls[row.name] = calls.get(row.name, 0) + row.calls
        self_s[row.name] = self_s.get(row.name, 0) + row.self_s
    averages = {
        average.key: average
        for average in profiler.key_averages()
        if average.key.startswith("aten::")
    }
    assert set(calls) == set(averages)
    for name, average in averages.items():
        # The table takes an operator that calls itself for one call.
        assert calls[name] >= average.count
        assert self_s[name] == pytest.approx(average.self_cpu_time_total / 1e6, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("void at::native::fill<4, F<float> >(int, F<float>)", "at::native::fill<4, F<float> >"),
        ("void (anonymous namespace)::softmax<1>(T*)", "(anonymous namespace)::softmax<1>"),
        ("void k<(lambda()#1)>(f(*)(int), x)", "k<(lambda()#1)>"),
        ("ampere_bf16_s16816gemm", "ampere_bf16_s16816gemm"),
        ("Memset (Device)", "Memset (Device)"),
        (")", ")"),
    ],
)
def test_short_names_of_kernels(kernel: str, expected: str) -> None:
    assert short(kernel) == expected


# The GPU's own tool ---------------------------------------------------------------------------


def test_what_the_gpu_says_of_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$1" in --id=GPU-7) echo "1980, 650.25, [N/A]";; *) exit 6;; esac'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert timing.asked("GPU-7") == (1980.0, 650.25, None)
    assert timing.asked("GPU-8") is None
    monkeypatch.setenv("PATH", "")
    assert timing.asked("GPU-7") is None


def test_the_gauge_is_in_the_middle_of_what_is_known() -> None:
    assert gauge([]) is None
    assert gauge([(1900.0, 600.0, None), (1980.0, None, None), (1950.0, 700.0, None)]) == Gauge(
        3, 1.95e9, 650.0, None
    )


def test_answers_that_come_too_late_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader is told to stop while the third question is on its way."""

    class Properties:
        uuid = "7"

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    monkeypatch.setattr(timing, "PAUSE_S", 0.0)
    reader = timing.GaugeReader(torch.device("cuda"))
    asked = 0

    def answer(uuid: str) -> timing.Sample:
        nonlocal asked
        asked += 1
        assert uuid == "GPU-7"
        if asked == 3:
            reader.stop()
        return (float(asked), None, None)

    monkeypatch.setattr(timing, "asked", answer)
    with reader:
        reader.thread.join()
    assert reader.samples == [(1.0, None, None), (2.0, None, None)]


# The corpus and the page ----------------------------------------------------------------------


def test_a_corpus_of_before_has_no_times() -> None:
    timed = [
        entry for corpus in corpora().values() for entry in corpus.entries if entry.measurement
    ]
    old = [
        entry.measurement
        for entry in timed
        if entry.measurement and entry.measurement.times is None
    ]
    assert old or not timed
    for measurement in old[:1]:
        plain = measurement.to_json()
        del plain["times"], plain["times_error"]
        assert Measurement.from_json(plain) == measurement


TIMES = Times(
    6, True, (0.25, 0.5, 0.75), PHASE_S, 3, 0.4, Gauge(1, 1.98e9, None, None), 3,
    (OperatorTime("aten::mm", ((8, 4), (4, 2)), ("float32",) * 2, 1.0, 0.1,
                  (Kernel("gemm", 1.0, 0.1),)),),
)  # fmt: skip


def corpus_of(kind: str, times: Times | None) -> Corpus:
    """One case timed, and one that ran out of memory."""
    seen = predict(TINY, H100)
    ran_out = replace(seen, out_of_memory=True, stopped_in="step 1, forward")
    about: measure.Json = {"device": H100.device_name, "torch": "2", "cuda": None, "cudnn": None,
                           "driver": None, "allocator": {}, "total_memory_bytes": 1}  # fmt: skip
    entries = [
        Entry("gpt2-tiny", settings(TINY), replace(seen, times=times)),
        Entry("gpt2-tiny", settings(TINY), ran_out),
    ]
    return Corpus(kind, about, is_small=True, entries=entries)


def test_times_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "it.json"
    corpus_of("gpu", TIMES).write(path)
    assert read_corpus(path).entries == corpus_of("gpu", TIMES).entries
    assert json.loads(path.read_text())["cases"][1]["measurement"]["times"] is None
    corpus_of("stand-in", TIMES).write(path)
    with pytest.raises(ValueError, match="a stand-in computes nothing"):
        read_corpus(path)


PREDICTED = PredictedStep(step_s=0.5, virtual_s=0.44, kernel_s=0.3)


def predicted(entry: Entry, corpus: Corpus) -> PredictedStep:
    return PREDICTED


@pytest.mark.parametrize("kind", ["gpu", "stand-in"])
@pytest.mark.parametrize("times", [TIMES, None])
def test_the_page_has_step_times_of_real_gpus_alone(kind: str, times: Times | None) -> None:
    corpus = corpus_of(kind, times)
    page = accuracy_markdown([(corpus, compare(corpus))], predicted)
    assert ("### Step times" in page) is (kind == "gpu" and times is not None)


def test_a_predicted_step_stands_beside_the_measured_one() -> None:
    """Predicted 0.5 s, measured 0.4 s in a row: 1.25."""
    corpus = corpus_of("gpu", TIMES)
    [time] = step_times(corpus, predicted)
    assert time == StepTime("gpt2-tiny", TIMES, PREDICTED)
    assert time.ratio == 1.25
    assert time.virtual_ratio == pytest.approx(1.1)
    page = accuracy_markdown([(corpus, compare(corpus))], predicted)
    assert "- steps: 25 % off in the median of 1, 25 % at worst" in page
    [line] = [line for line in page.splitlines() if "MHz" in line]
    cells = [word.strip() for word in line.strip("|").split("|")]
    assert cells[:5] == ["gpt2-tiny", "500.0 ms", "400.0 ms", "1.2500", "1.1000"]
    assert cells[7] == "1980 MHz"
    assert max(map(len, page.splitlines())) <= 100


def test_what_the_profiler_took_is_no_kernel_and_what_it_lost_is_unknown() -> None:
    def operator(name: str, self_s: float) -> OperatorTime:
        return OperatorTime(name, (), (), 1.0, self_s, ())

    mm, own = operator("aten::mm", 0.2), operator("Activity Buffer Request", 0.1)
    whole = StepTime("", replace(TIMES, operators=(mm, own)), PREDICTED)
    assert whole.kernel_s == 0.2
    assert whole.kernel_ratio == pytest.approx(1.5)
    lost = StepTime("", replace(TIMES, operators=(mm, operator(LOST, 0.01))), PREDICTED)
    assert (lost.kernel_s, lost.kernel_ratio) == (None, None)


def test_measured_steps_stand_alone_where_nobody_predicts() -> None:
    corpus = corpus_of("gpu", replace(TIMES, gauge=None))
    assert [step_time.ratio for step_time in step_times(corpus)] == [None]
    page = accuracy_markdown([(corpus, compare(corpus))])
    assert "in the median of" not in page
    assert "unknown" in page


@pytest.mark.thorough
def test_the_command_times_real_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the host, scaled down; on one thread, so that a busy machine still takes all 20 steps."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "executable", str(commands() / "python"))
    path = tmp_path / "it.json"
    assert collect.main(["--device", "cpu", "--only", "gpt2-tiny", "--output", str(path)]) == 0
    [entry] = read_corpus(path).entries
    seen = entry.measurement
    assert seen is not None
    assert seen.times_error is None
    assert len(seen.steps) == 3
    times = seen.times
    assert times is not None
    assert times.warm_up_steps >= 5
    assert len(times.step_s) == times.stretch_steps == 20
    assert min(times.step_s) > 0
    assert min(times.step_s) <= times.median_step_s == median(times.step_s) <= max(times.step_s)
    assert times.stretch_step_s > 0
    assert list(times.phase_s) == list(PHASES)
    assert 0 < sum(times.phase_s.values()) < 2 * times.median_step_s
    assert times.gauge is None
    assert times.profiled_steps == 3
    assert times.operators is not None
    rows = times.operators
    assert [row.self_s for row in rows] == sorted((row.self_s for row in rows), reverse=True)
    assert all((row.name or "").startswith("aten::") for row in rows)
    assert len({(row.name, row.shapes, row.dtypes) for row in rows}) == len(rows)
    # Each of its two layers has one gradient of the weight that makes queries, keys and values:
    # 3 x 64 numbers for each of 2 x 32 tokens, times the 64 that came in.
    products = {row.shapes: row.calls for row in rows if row.name == "aten::mm"}
    assert products[(192, 64), (64, 64)] == 2


REAL = "nvidia-h100-80gb-hbm3-torch-2.11.0.json"


@pytest.mark.one_case_in(6)
@pytest.mark.parametrize(
    ("name", "kernels", "step"),
    [
        # `make test` runs one of six, none that takes a minute to compile.
        ("gpt2-bf16-fused", 0.04, 0.03),
        ("gpt2-bf16-compiled", 0.04, 0.03),
        ("gpt2-one-row-compiled", 0.05, 0.08),
        ("vit-b-bf16-dropout", 0.07, 0.03),
        # Most of what is too much is 148 detached gradients, each priced as a view from Python.
        ("gpt2-one-row-reduce-overhead", 0.04, 0.27),
        ("llama-1b-bf16-compiled", 0.04, 0.07),
        ("resnet50-channels-last", 0.10, 0.06),
        ("mixture-bf16", 0.04, 0.06),
    ],
)
def test_a_real_h100s_steps(name: str, kernels: float, step: float) -> None:
    """The step beside the machine's own kind of CPU."""
    committed = corpora()[REAL]
    [entry] = [entry for entry in committed.entries if entry.name == name]
    [time] = step_times(replace(committed, entries=[entry]), predict_step)
    assert time.kernel_ratio == pytest.approx(1, abs=kernels)
    assert time.virtual_ratio == pytest.approx(1, abs=step)
    [line] = steps_table([time])[1]
    assert list(steps_shown([name])) == [line], "make docs"


PAIRS = {
    "gpt2-bf16-compiled": "gpt2-bf16-fused",
    "gpt2-one-row-compiled": "gpt2-one-row",
    "llama-1b-bf16-compiled": "llama-1b-bf16-fused",
    # With dropout or a scaled loss, and lists of tensors for the optimizer's step, eagerly.
    "vit-b-bf16-compiled": "vit-b-bf16-dropout",
    "bert-base-compiled": "bert-base-fp16",
}
"""(compiled, eager) cases of that GPU: the last two differ in more than that."""
ON_SLOW_CPU = 4
"""The page's column of predicted over measured steps, beside the machine's own kind of CPU."""


def test_what_compiling_gains_is_what_it_gained_on_a_real_h100() -> None:
    """By the page's steps: a gain is off as far as the ratios of both steps are."""
    cells = {row[0]: row for row in steps_shown({*PAIRS, *PAIRS.values()})}
    measured = {entry.name: entry.measurement for entry in corpora()[REAL].entries}
    far = []
    for compiled, eager in PAIRS.items():
        times = [seen.times for name in (eager, compiled) if (seen := measured[name]) is not None]
        eager_s, compiled_s = (each.undisturbed_step_s for each in times if each is not None)
        off = float(cells[eager][ON_SLOW_CPU]) / float(cells[compiled][ON_SLOW_CPU])
        gain = eager_s / compiled_s
        assert (gain > 1) is (gain * off > 1), compiled
        far.append(abs(off - 1))
    assert median(far) < 0.1
    assert max(far) < 0.2


def steps_shown(names: Iterable[str]) -> Iterator[list[str]]:
    """Cells of the page's rows, of a real GPU's cases."""
    page = (REAL_TRACES.parent / "accuracy.md").read_text()
    rows = page.partition("### Step times")[2].partition("\n## ")[0].splitlines()
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if cells[0] in names:
            yield cells


def test_the_page_has_the_kernels_of_a_real_gpu_as_the_benchmark_wrote_them() -> None:
    section = kernels_section()
    kept = REAL_TRACES.read_text()
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 5
    assert all(row in kept for row in rows)
    assert section in (REAL_TRACES.parent / "accuracy.md").read_text()
