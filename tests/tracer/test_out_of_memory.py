"""Beyond the chip's memory: what the script is told and may do, and what the report says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import torchtally
from tests.cli.run_tally import Run, tally_run
from tests.traces import traced
from torchtally.ledger import account
from torchtally.memory import Category
from torchtally.trace import Ending, Phase, Trace
from torchtally.tracer.session import recording
from torchtally.views.shortage import holders
from torchtally.views.summary import shortage_of

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
GPU = "RTX-4090"
"""24 GiB, less 500 MiB for the context."""


def empty(gib: float) -> torch.Tensor:
    return torch.empty(int(gib * GIB), dtype=torch.uint8, device="cuda")


def failed(function: Callable[[], object], gpu: str = GPU) -> Trace:
    """The trace of a function that torch.OutOfMemoryError ends, as `tally run` writes it."""
    with recording(gpu, script="failed") as recorder:
        with pytest.raises(torch.OutOfMemoryError) as refusal:
            function()
        message = f"torch.OutOfMemoryError: {refusal.value}"
        return recorder.trace(Ending("exception", message))


# As PyTorch raises it --------------------------------------------------------------------------


def test_it_is_raised_as_torch_words_it() -> None:
    """20 GiB of 24 are held and 5 more wanted: handlers look for the class, or for the words."""
    with torchtally.virtual_gpu(GPU):
        kept = empty(20)
        with pytest.raises(torch.OutOfMemoryError) as refusal:
            empty(5)
        error = refusal.value
        assert isinstance(error, RuntimeError)
        assert isinstance(error, torch.cuda.OutOfMemoryError)
        assert " out of memory." in str(error)
        total = torch.cuda.get_device_properties(0).total_memory / GIB
        assert str(error).startswith(
            "CUDA out of memory. Tried to allocate 5.00 GiB. GPU 0 has a total capacity of "
            f"{total:.2f} GiB of which {total - 20 - 500 / 1024:.2f} GiB is free. Including "
            f"non-PyTorch memory, this process has {20 + 500 / 1024:.2f} GiB memory in use. "
            "Of the allocated memory 20.00 GiB is allocated by PyTorch, and 0 bytes is reserved "
            "by PyTorch but unallocated."
        )
        assert torch.cuda.memory_allocated() == 20 * GIB
        assert torch.cuda.memory_stats()["num_ooms"] == 1
        del kept
        assert empty(23).numel() == 23 * GIB


def test_what_was_refused_takes_nothing_and_the_traceback_is_the_scripts() -> None:
    with torchtally.virtual_gpu(GPU):
        with pytest.raises(torch.OutOfMemoryError) as refusal:
            empty(30)
        assert any(entry.name == "empty" for entry in refusal.traceback)
        del refusal
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0


def test_operators_whose_results_do_not_fit_are_refused_too() -> None:
    """Copies, in-place growth and library workspaces, not factories alone."""
    with torchtally.virtual_gpu(GPU):
        x = empty(12)
        for call in (
            x.clone,
            lambda: x + 1,
            lambda: x.float(),
            lambda: torch.cat([x, x]),
            lambda: x.untyped_storage().resize_(30 * GIB),
            lambda: x.to(torch.float64),
            lambda: torch.cuda.caching_allocator_alloc(12 * GIB),
        ):
            with pytest.raises(torch.OutOfMemoryError):
                call()
            assert torch.cuda.memory_allocated() == 12 * GIB
        x.add_(1)


# Caught ----------------------------------------------------------------------------------------


def attempt(batch: int) -> None:
    """Holds its batch twice."""
    x = empty(batch)
    y = x.clone()
    del x, y


def halving(batches: list[int]) -> None:
    """Tries batches of 32, 16, 8 ... GiB, as Accelerate's find_executable_batch_size does."""
    batch = 32
    while not batches:
        try:
            attempt(batch)
            batches.append(batch)
        except RuntimeError as error:
            if " out of memory." not in str(error):
                raise
            batch //= 2


def test_a_script_that_halves_its_batch_goes_on() -> None:
    """32 GiB are too much at once, 16 twice; of 8 there are two: 16 GiB."""
    batches: list[int] = []
    trace = traced(lambda: halving(batches), GPU)
    assert batches == [8]
    assert [refusal.requested_bytes for refusal in trace.refusals] == [32 * GIB, 16 * GIB]
    assert [refusal.allocated_bytes for refusal in trace.refusals] == [0, 16 * GIB]
    assert [trace.sites[refusal.site].line.text for refusal in trace.refusals] == [
        'return torch.empty(int(gib * GIB), dtype=torch.uint8, device="cuda")',
        "y = x.clone()",
    ]
    assert (trace.ending.kind, trace.final_refusal) == ("exit", None)
    ledger = account(trace)
    ledger.check()
    assert ledger.memory.peak_bytes == 16 * GIB
    assert shortage_of(ledger) is None


def test_another_error_after_one_that_was_caught_is_no_shortage() -> None:
    trace = traced(lambda: halving([]), GPU)
    spoiled = replace(trace, ending=Ending("exception", "ValueError: mine"))
    assert spoiled.final_refusal is None
    spoiled = replace(trace, ending=Ending("exception", "torch.OutOfMemoryError: CUDA out of"))
    assert spoiled.final_refusal is trace.refusals[-1]


def test_a_cache_in_the_way_is_given_back_before_anything_is_refused() -> None:
    def script() -> None:
        empty(12)
        assert torch.cuda.memory_reserved() == 12 * GIB
        empty(16)
        assert torch.cuda.memory_reserved() == 16 * GIB
        assert torch.cuda.memory_stats()["num_alloc_retries"] == 1

    assert traced(script, GPU).refusals == ()


def test_memory_without_end() -> None:
    def script() -> None:
        kept = [empty(20) for _ in range(10)]
        assert torch.cuda.memory_allocated() == 200 * GIB
        assert torch.cuda.mem_get_info()[0] == 0
        del kept

    trace = traced(script, GPU, memory_is_limited=False)
    assert trace.refusals == ()
    assert account(trace).memory.peak_bytes == 200 * GIB


# Who held it -----------------------------------------------------------------------------------


class Net(nn.Module):
    """1 GiB of parameters; each layer's result is 4 GiB."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8192, 16384, bias=False)
        self.second = nn.Linear(16384, 8192, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x.sin()
        out: torch.Tensor = self.second(x)
        return out


def train(rows: int, steps: int = 1) -> None:
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        # a sum's own gradient is one number spread out, of which products need a copy
        loss = model(torch.zeros(rows, 8192, device="cuda")).mul(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def held(trace: Trace) -> dict[str, int]:
    """Bytes by category when the memory ran out."""
    ledger = account(trace)
    ledger.check()
    assert trace.final_refusal is not None
    table = holders(ledger, trace.final_refusal.tick)
    assert table.total("bytes") == trace.final_refusal.allocated_bytes
    bytes_by_category: dict[str, int] = {}
    for category, size in zip(table.column("category"), table.column("bytes"), strict=True):
        bytes_by_category[str(category)] = bytes_by_category.get(str(category), 0) + int(str(size))
    return bytes_by_category


def test_what_the_forward_pass_kept_is_called_activations() -> None:
    """160 Ki rows of 32 KiB: 5 GiB come in; 10 GiB for `first`, and 10 more for the sine."""
    trace = failed(lambda: train(160 * KIB))
    refusal = trace.final_refusal
    assert refusal is not None
    assert refusal.requested_bytes == 10 * GIB
    site = trace.sites[refusal.site]
    assert site.line is not None
    assert site.line.text == "x = x.sin()"
    bytes_by_category = held(trace)
    assert bytes_by_category["inputs"] == 5 * GIB
    assert (
        bytes_by_category["activations"] == 10 * GIB
    )  # no backward pass has read it: it would have
    assert bytes_by_category["parameters"] == GIB
    assert bytes_by_category["workspaces"] == 8519680
    assert sum(bytes_by_category.values()) == refusal.allocated_bytes
    assert bytes_by_category.keys() == {"inputs", "activations", "parameters", "workspaces"}


def test_a_refusal_in_the_backward_pass_belongs_to_the_forward_line() -> None:
    """79 Ki rows: 79/32 GiB came in, twice that of `first` is kept for the sine.

    The sine's result was kept, too, but `second` has done with it. As much again are the gradient,
    and the cosine; and their product is what is refused.
    """
    trace = failed(lambda: train(79 * KIB))
    came_in = 79 * GIB // 32
    refusal = trace.final_refusal
    assert refusal is not None
    assert refusal.requested_bytes == 2 * came_in
    assert trace.ops[-1].phase is Phase.BACKWARD
    site = trace.sites[refusal.site]
    assert site.line is not None
    assert site.line.text == "x = x.sin()"
    assert site.module == ""
    assert site.module_class == "Net"
    bytes_by_category = held(trace)
    assert bytes_by_category["inputs"] == came_in
    assert bytes_by_category["activations"] == 2 * came_in + 512  # and the loss
    assert bytes_by_category["temporaries"] == 4 * came_in + 512  # and its gradient
    assert bytes_by_category["gradients"] == 512 * MIB
    shortage = shortage_of(account(trace))
    assert shortage is not None
    assert shortage.moment.startswith("step 1, ")
    assert shortage.moment.endswith(f"test_out_of_memory.py:{site.line.line}")


def test_what_an_earlier_step_left_is_said_to_be_since_then() -> None:
    """Every step keeps 4 GiB: the sixth finds no room."""

    def script() -> None:
        weight = nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        kept = []
        for _ in range(8):
            kept.append(empty(4))
            (weight * 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = failed(script)
    assert len(trace.step_ends) == 5
    refusal = trace.final_refusal
    assert refusal is not None
    table = holders(account(trace), refusal.tick)
    since = [
        since
        for since, size in zip(table.column("since"), table.column("bytes"), strict=True)
        if size == 4 * GIB
    ]
    assert since == [f"step {number}" for number in range(1, 6)]


def test_the_categories_at_a_refusal_are_those_of_the_same_run_with_more_memory() -> None:
    """What is called activations when it runs out is what the H200 reads in its backward pass."""
    short = failed(lambda: train(160 * KIB))
    whole = traced(lambda: train(160 * KIB), "H200")
    tick = short.refusals[-1].tick
    actual, expected = (
        {
            category: sum(storage.bytes for storage, its in account(trace).memory.alive_at(tick - 1)
                          if its is category)
            for category in Category if category is not Category.WORKSPACES
        }
        for trace in (short, whole)
    )  # fmt: skip
    assert actual == expected


# A real process --------------------------------------------------------------------------------

SCRIPT = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(1024, 1024, bias=False)
    def forward(self, x):
        x = self.first(x)
        return x.sin()

model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    x = torch.zeros(7 * 1024 * 1024, 1024, device="cuda")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("done")
"""
"""7 Mi rows of 4 KiB: 28 GiB come in, 28 are `first`'s, and for 28 more an H100 has no room."""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Run, Any]]:
    """Runs the script on an H100, in a process of its own."""
    place = tmp_path_factory.mktemp("oom")
    (place / "train.py").write_text(SCRIPT)

    def run(*options: str) -> tuple[Run, Any]:
        report = tally_run("--json", "out.json", *options, "train.py", cwd=place)
        return report, json.loads((place / "out.json").read_text())

    return run


def test_an_uncaught_refusal_is_reported(process: Callable[..., tuple[Run, Any]]) -> None:
    run, document = process("--no-advice")
    assert (run.code, run.stdout) == (1, "")
    traceback, report = run.stderr.split("does not fit H100-SXM\n")
    assert re.match(
        r"  peak memory  [\d.]+ GiB  or more, of 79.19 GiB; it stopped with [\d.]+ GiB\n", report
    )
    assert (
        "\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 28.00 GiB. " in traceback
    )
    assert 'train.py", line 10, in forward\n    return x.sin()\n' in traceback
    assert "torchtally" not in traceback
    assert "Out of memory in step 1, train.py:10: requested 28.00 GiB" in report
    table = report.split("What occupied the memory at the OOM\n")[1].split("\n\n")[0]
    rows = [line.split() for line in table.splitlines()]
    largest = [[cells[0], *cells[1:3], cells[5]] for cells in rows[1:3]]
    assert sorted(largest) == [
        ["activations", "28.00", "GiB", "train.py:9"],
        ["inputs", "28.00", "GiB", "train.py:15"],
    ]
    assert run.trace.final_refusal is not None
    memory = document["memory"]
    assert (memory["fits"], memory["refused_requests"]) == (False, 1)
    refusal = memory["out_of_memory"]
    held_bytes = 56 * GIB + 4 * MIB + 32 * MIB  # the parameters; cuBLAS's workspace
    assert (refusal["requested_bytes"], refusal["allocated_bytes"]) == (28 * GIB, held_bytes)
    assert (refusal["line"], refusal["source"]) == (10, "return x.sin()")
    assert Path(refusal["file"]).name == "train.py"
    assert (
        refusal["reserved_bytes"] + refusal["free_bytes"] + memory["context_bytes"]
        == (memory["capacity_bytes"])
    )
    assert sum(holder["bytes"] for holder in refusal["holders"]) == held_bytes
    assert {holder["category"] for holder in refusal["holders"]} == {
        *("inputs", "activations", "parameters"),
        "workspaces",
    }
    assert document["ending"]["kind"] == "exception"


def test_without_a_limit_it_goes_on_and_does_not_fit(
    process: Callable[..., tuple[Run, Any]],
) -> None:
    run, document = process("--no-oom")
    assert (run.code, run.stdout) == (0, "")  # two steps were taken
    assert "does not fit H100-SXM\n" in run.stderr
    assert "Out of memory" not in run.stderr
    assert len(run.trace.step_ends) == 2
    assert run.trace.refusals == ()
    memory = document["memory"]
    assert (memory["fits"], memory["out_of_memory"]) == (False, None)
    assert memory["peak_allocated_bytes"] > 3 * 28 * GIB


# In an evaluation ------------------------------------------------------------------------------


def take_steps(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_memory_that_runs_out_in_an_evaluation_is_of_no_step() -> None:
    """12 GiB are kept after two steps, and 12 more are wanted of 23.5."""

    def script() -> None:
        model = nn.Linear(64, 64).cuda()
        take_steps(model, 2)
        with torch.no_grad():
            kept = [model(torch.ones(4, 64, device="cuda"))]
            kept += [empty(12)]
            kept += [empty(12)]

    ledger = account(failed(script))
    shortage = shortage_of(ledger)
    assert shortage is not None
    assert re.fullmatch(r"evaluation after step 2, test_out_of_memory\.py:\d+", shortage.moment)
    assert shortage.holders.column("since")[0] == "after step 2"
    evaluated = [entry for entry in ledger.entries if entry.op.phase is Phase.EVALUATION]
    assert "aten.addmm" in {entry.call.name for entry in evaluated}


@pytest.mark.parametrize("is_frozen", [False, True])
def test_memory_that_runs_out_in_a_step_is_of_the_step(is_frozen: bool) -> None:
    """As does a frozen encoder's, which runs without autograd in every step."""

    def script() -> None:
        model, encoder = nn.Linear(64, 64).cuda(), nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for gib in (0.1, 0.2, 30):
            with torch.set_grad_enabled(not is_frozen):
                features = encoder(torch.ones(4, 64, device="cuda"))
                features = features + empty(gib).sum()
            model(features).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    shortage = shortage_of(account(failed(script)))
    assert shortage is not None
    assert shortage.moment.startswith("step 3, ")
