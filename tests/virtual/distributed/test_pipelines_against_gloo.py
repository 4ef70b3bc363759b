"""Stages that are simulated at once send and hold what real ranks of gloo do, by every schedule."""

import gc
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.cli.run_tally import tally_run
from tests.train.ranks.processes import on_ranks
from tests.virtual.distributed.live_storages import LiveStorages, peak_of
from tests.virtual.distributed.pipelines import PIPELINES
from tests.virtual.distributed.test_against_gloo import Counting, Measured, counts_of
from torchtally.trace.peers import load_peers

SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
import torch
import torch.distributed as dist
from tests.virtual.distributed.live_storages import LiveStorages, peak_of
from tests.virtual.distributed.pipelines import PIPELINES

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
for program in PIPELINES.values():
    program("cuda")
"""
ROOT = Path(__file__).parents[3]


def measured() -> Measured:
    """Of all schedules, in a real rank."""
    dist.init_process_group("gloo")
    with Counting() as counting, LiveStorages() as live:
        for program in PIPELINES.values():
            gc.collect()
            program("cpu")
    dist.destroy_process_group()
    return Measured(counting.counts, live.peak_bytes)


@pytest.mark.thorough("cli/test_pipelines.py, which runs a pipeline of the user's")
def test_stages_send_and_hold_what_real_ones_do(tmp_path: Path) -> None:
    """Four of them: a first, a last, and two between. Two do as well."""
    size = 4
    (tmp_path / "train.py").write_text(SCRIPT.format(root=str(ROOT)))
    run = tally_run("train.py", cwd=tmp_path, gpu=f"{size}xH100-SXM")
    assert run.code == 0, run.stderr
    traces = [run.trace, *load_peers(run.trace, str(run.file))]
    assert len(traces) == size
    repeats = 0
    while True:
        ranks: list[Measured] = on_ranks(measured, size)
        ours, theirs = [peak_of(trace) for trace in traces], [rank.peak_bytes for rank in ranks]
        if repeats == 3 or ours == theirs:
            break
        repeats += 1  # gloo's threads let go of tensors a moment late, now and then
    assert ours == theirs
    for trace, rank in zip(traces, ranks, strict=True):
        assert {"c10d.send", "c10d.recv_"} <= {name for name, _, _ in rank.collectives}
        assert counts_of(trace) == rank.collectives
