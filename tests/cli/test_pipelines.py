"""`tally run` of a pipeline: its stages run at once, tell each other shapes, and wait."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.run_tally import Run, tally_run
from tests.views.test_tracks import check_tracks
from tests.warm import warm
from torchtally.ledger import account
from torchtally.timing.targets import roofline
from torchtally.trace.peers import load_peers
from torchtally.views.tracks import tracks_of

PIPELINE = """\
import sys
import torch
import torch.distributed as dist
from torch.distributed import pipelining

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
kind, batches, per_rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WIDTH, BATCH, LAYERS = 24576, 4096, 16 // per_rank

class Inputs(torch.nn.Module):
    def forward(self, x):
        return x if x.requires_grad else x.detach().requires_grad_()

def layers():
    products = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    return torch.nn.Sequential(Inputs(), *products)

torch.set_default_dtype(torch.bfloat16)
with device:
    numbers = range(rank, size * per_rank, size)
    count = size * per_rank
    stages = [pipelining.PipelineStage(layers(), each, count, device) for each in numbers]
    batch = torch.ones(batches * BATCH, WIDTH)
    weight = torch.zeros(1, requires_grad=True)
schedule = getattr(pipelining, kind)(
    stages[0] if per_rank == 1 else stages, batches, loss_fn=lambda out, target: out.sum()
)
optimizer = torch.optim.SGD([weight])
for step in range(2):
    weight.grad = torch.zeros_like(weight)
    inputs = (batch,) if rank == 0 else ()
    schedule.step(*inputs, **({"target": batch, "losses": []} if rank == size - 1 else {}))
    for stage in stages:
        stage.submod.zero_grad(set_to_none=False)
    optimizer.step()
"""
CIRCLE = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
number = torch.zeros(1, dtype=torch.long, device="cuda")
dist.recv(number, src=1 - dist.get_rank())
dist.send(number, dst=1 - dist.get_rank())
"""
FAILING = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
if dist.get_rank() == 1:
    raise RuntimeError("the second stage has no data")
number = torch.zeros(1, dtype=torch.long, device="cuda")
dist.recv(number, src=1)
"""


FAILING_LATER = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
layer = torch.nn.Linear(64, 64, bias=False, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
if rank == 1:
    raise RuntimeError("stage 1 has no data")
for _ in range(3):
    out = layer(torch.ones(8, 64, device="cuda"))
    dist.send(out.detach(), 1)
    gradient = torch.empty_like(out)
    dist.recv(gradient, 1)
    out.backward(gradient)
    optimizer.step()
    optimizer.zero_grad()
"""
OBJECTS = """\
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
words = [f"word {n}" for n in range(20_000)]
settings = [{"width": 64, "words": words} if rank == 0 else None, None]
dist.broadcast_object_list(settings, src=0)
width, part = settings[0]["width"], [None]
assert settings[0]["words"] == words
widths = [width * (n + 1) for n in range(size)] if rank == 0 else None
dist.scatter_object_list(part, widths, src=0)
assert part == [width * (rank + 1)]
pair = dist.new_group([1, 3])
if rank in (1, 3):
    shared = ["of rank 3"] if rank == 3 else [None]
    dist.broadcast_object_list(shared, group=pair, group_src=1)
    assert shared == ["of rank 3"]
torch.nn.Linear(width, part[0], device="cuda")
"""


def run_of(
    text: str, tmp_path: Path, *options: str, gpus: int = 2, arguments: tuple[str, ...] = ()
) -> Run:
    (tmp_path / "train.py").write_text(text)
    return tally_run(*options, "train.py", *arguments, cwd=tmp_path, gpu=f"{gpus}xH100-SXM")


def rows_by_rank(run: Run, cwd: Path) -> list[dict[str, Any]]:
    command = warm(
        "from torchtally.cli import main\nmain()", "show", str(run.file), "--by", "rank", "--json"
    )
    shown = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=True)
    rows: list[dict[str, Any]] = json.loads(shown.stdout)["rows"]
    return rows


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize(
    ("schedule", "ranks", "batches", "stages"),
    [("Schedule1F1B", 3, 8, 1), ("ScheduleGPipe", 2, 8, 1), ("ScheduleInterleaved1F1B", 2, 8, 2)],
)
def test_an_unmodified_pipeline_waits_as_the_closed_form_says(
    schedule: str, ranks: int, batches: int, stages: int, tmp_path: Path
) -> None:
    """Of equal stages whose messages take less than 1 % of the step, and that step no
    parameters.
    """
    arguments = (schedule, str(batches), str(stages))
    run = run_of(PIPELINE, tmp_path, gpus=ranks, arguments=arguments)
    assert run.code == 0, run.stderr
    assert run.trace.peers == tuple(range(1, ranks))
    assert "for other ranks" in run.stderr
    rows = rows_by_rank(run, tmp_path)
    assert [row["rank"] for row in rows] == [str(rank) for rank in range(ranks)]
    bubble = (ranks - 1) / (stages * batches + ranks - 1)
    for row in rows:
        assert row["waiting_s"] / row["step_s"] == pytest.approx(bubble, rel=0.015)
        assert row["step_s"] == pytest.approx(rows[0]["step_s"], rel=0.001)
        parts = ("compute_s", "exposed_s", "waiting_s", "idle_s")
        assert sum(row[part] for part in parts) == pytest.approx(row["step_s"])
    if ranks == 3:
        check_timeline(run, ranks)


def check_timeline(run: Run, stages: int) -> None:
    """A process for each stage; what it waits for the others stands in its tracks."""
    peers = load_peers(run.trace, str(run.file))
    ledger = account(run.trace, roofline=roofline("H100-SXM"), peers=peers)
    check_tracks(ledger, is_coalesced=True)
    ranks = tracks_of(ledger)
    assert [rank.name for rank in ranks] == [f"rank {rank}" for rank in range(stages)]
    for rank in ranks:
        assert {each.name for each in rank.tracks[0].slices} >= {"computing", "waiting for ranks"}
        assert any(track.name.startswith("default_pg of 3, with rank") for track in rank.tracks)


@pytest.mark.thorough
def test_ranks_that_all_receive_first_are_told(tmp_path: Path) -> None:
    run = run_of(CIRCLE, tmp_path)
    assert run.code == 1
    assert "ranks 0, 1 all wait to receive from each other" in run.stderr


def test_a_stage_that_fails_is_shown(tmp_path: Path) -> None:
    run = run_of(FAILING, tmp_path)
    assert run.code == 1
    assert "rank 1, which has ended without sending it" in run.stderr
    assert "the second stage has no data" in run.stderr


def test_a_stage_that_fails_while_the_first_goes_on_ends_the_run(tmp_path: Path) -> None:
    """The first one waits for no value of it, and trains to its end."""
    run = run_of(FAILING_LATER, tmp_path)
    assert run.code == 1
    assert len(run.trace.step_ends) == 2
    assert "tally: rank 1 failed:" in run.stderr
    assert "The script failed; the report covers what ran before. rank 1:" in run.stderr
    assert run.trace.ending.message == "rank 1: RuntimeError: stage 1 has no data"


def test_objects_of_one_rank_reach_the_others(tmp_path: Path) -> None:
    run = run_of(OBJECTS, tmp_path, "--rank", "0,1,3", gpus=4)
    assert run.code == 0, run.stderr
    peers = load_peers(run.trace, str(run.file))
    weights = [s.requested_bytes for trace in (run.trace, *peers) for s in trace.storages
               if s.requested_bytes >= 64 * 64 * 4]  # fmt: skip
    assert {64 * 64 * 4 * n for n in (1, 2, 4)} <= set(weights)


def test_a_rank_alone_has_the_objects_of_those_that_send_them(tmp_path: Path) -> None:
    """Rank 1 has a part from rank 0, and objects of rank 3, neither of which is reported."""
    run = run_of(OBJECTS, tmp_path, "--rank", "1", gpus=4)
    assert run.code == 0, run.stderr
    for helper in (0, 3):
        assert f"simulating rank {helper}, too, for the objects that it sends" in run.stderr
    assert run.trace.peers == ()
    assert 64 * 128 * 4 in [storage.requested_bytes for storage in run.trace.storages]
    assert not list(tmp_path.glob("*.ranks"))


def test_a_rank_that_is_asked_for_by_itself_meets_the_failure_of_another(tmp_path: Path) -> None:
    script = OBJECTS.replace("words = [", "assert rank\nwords = [")
    run = run_of(script, tmp_path, "--rank", "1", gpus=4)
    assert run.code == 1
    assert "rank 0, which has ended without sending it" in run.stderr
    assert "AssertionError" in run.stderr


def test_a_stage_alone_learns_the_shapes_from_the_one_before(tmp_path: Path) -> None:
    run = run_of(PIPELINE, tmp_path, "--rank", "1", arguments=("Schedule1F1B", "2", "1"))
    assert run.code == 0, run.stderr
    assert len(run.trace.step_ends) == 2


@pytest.mark.thorough
def test_ranks_by_number(tmp_path: Path) -> None:
    """Ranks that do not talk to each other are timed together all the same."""
    script = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "for _ in range(1 + dist.get_rank()):\n"
        "    torch.ones(4096, 4096, device='cuda') @ torch.ones(4096, 4096, device='cuda')\n"
        "dist.all_reduce(torch.ones(4096, device='cuda'))\n"
    )
    run = run_of(script, tmp_path, "--rank", "0,3", gpus=4)
    assert run.code == 0, run.stderr
    rows = rows_by_rank(run, tmp_path)
    assert [row["rank"] for row in rows] == ["0", "3"]
    assert rows[0]["waiting_s"] > rows[0]["compute_s"]
    assert rows[1]["waiting_s"] == 0


def test_ranks_that_are_not_there_are_refused(tmp_path: Path) -> None:
    run = run_of(CIRCLE, tmp_path, "--rank", "0,9")
    assert run.code == 2
    assert "2 GPUs have the ranks 0 to 1" in run.stderr
