"""Stages that are simulated at once send what real ranks of gloo send, by every schedule."""

from collections import Counter
from pathlib import Path

import torch.distributed as dist

from tests.cli.run_tally import tally_run
from tests.train.ranks.processes import on_ranks
from tests.virtual.distributed.pipelines import PIPELINES
from tests.virtual.distributed.test_against_gloo import Collectives, Counting, counts_of
from torchtally.trace.peers import load_peers

SCRIPT = """\
import sys
sys.path.insert(0, {root!r})
import torch
import torch.distributed as dist
from tests.virtual.distributed.pipelines import PIPELINES

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
for program in PIPELINES.values():
    program("cuda")
"""
ROOT = Path(__file__).parents[3]


def counted() -> Collectives:
    """Of all schedules, in a real rank."""
    dist.init_process_group("gloo")
    with Counting() as counting:
        for program in PIPELINES.values():
            program("cpu")
    dist.destroy_process_group()
    return counting.counts


def test_stages_send_what_real_ones_do(tmp_path: Path) -> None:
    """Four of them: a first, a last, and two between. Two do as well."""
    size = 4
    (tmp_path / "train.py").write_text(SCRIPT.format(root=str(ROOT)))
    run = tally_run("train.py", cwd=tmp_path, gpu=f"{size}xH100-SXM")
    assert run.code == 0, run.stderr
    traces = [run.trace, *load_peers(run.trace, str(run.file))]
    real: list[Counter[tuple[str, tuple[int, ...], int]]] = on_ranks(counted, size)
    assert len(traces) == size
    for trace, counts in zip(traces, real, strict=True):
        assert {"c10d.send", "c10d.recv_"} <= {name for name, _, _ in counts}
        assert counts_of(trace) == counts
