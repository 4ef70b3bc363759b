"""`tally run --gpu 8xH100-SXM`: a script as one rank of several."""

from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run

SCRIPT = """\
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

assert torch.cuda.device_count() == 8
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.ones(8, 1024, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
total = torch.tensor([1.0], device="cuda")
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), "sums to", total.item())
"""
LAYER_BYTES = 1024 * 1024 * 4


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_runs_as_the_rank_asked_for(script: Path) -> None:
    """13 of 16 on two nodes: torchrun's environment, shards of a sixteenth, and its collectives."""
    run = tally_run(
        script.name, "--rank", "13", "--steps", "all", cwd=script.parent, gpu="2x8xH100-SXM"
    )
    assert run.code == 0, run.stderr
    assert "rank 13 of 16 sums to 16.0" in run.stdout
    trace = run.trace
    assert (trace.world.size, trace.world.gpus_per_node, trace.world.rank) == (16, 8, 13)
    assert trace.groups[0].ranks == tuple(range(16))
    parameters = [s for s in trace.storages if s.is_trained]
    assert {s.requested_bytes for s in parameters} == {LAYER_BYTES // 16}
    assert {s.device for s in parameters} == {"cuda:5"}
    calls = [trace.calls[op.call] for op in trace.ops]
    scattered = [call for call in calls if call.name == "c10d._reduce_scatter_base_"]
    assert len(scattered) == 3 * 4  # steps, layers
    assert {call.tensor("input_tensor").bytes for call in scattered} == {LAYER_BYTES}


def test_a_rank_beyond_the_gpus_is_refused(script: Path) -> None:
    run = tally_run(script.name, "--rank", "8", cwd=script.parent, gpu="8xH100-SXM")
    assert run.code == 2
    assert "--rank 8: 8 GPUs have the ranks 0 to 7" in run.stderr
    assert not (script.parent / "run.tally").exists()
