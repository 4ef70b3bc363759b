"""After a run of several GPUs, what its collectives suggest is tried by runs of their own."""

import json
from pathlib import Path

import pytest

from tests.cli.run_tally import tally_run

SCRIPT = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
layers = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6)))
model = DistributedDataParallel(layers.cuda(), bucket_cap_mb=100)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones({rows}, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_smaller_buckets_are_tried_and_what_they_save_is_shown(tmp_path: Path) -> None:
    """All gradients in one bucket hide behind nothing."""
    (tmp_path / "train.py").write_text(SCRIPT.format(rows=512))
    run = tally_run("--json", "report.json", "train.py", cwd=tmp_path, gpu="8xH100-SXM")
    assert run.code == 0, run.stderr
    assert "Changes that the collectives suggest, each tried in its own run" in run.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    (change,) = report["timed_changes"]
    assert change["what_if"] == "bucket_cap_mb=48"
    assert 0 < change["saved_s"] < report["time"]["step_s"]
    again = tally_run(
        "--json", "again.json", "--what-if", change["what_if"], "train.py",
        cwd=tmp_path, gpu="8xH100-SXM",
    )  # fmt: skip
    assert again.code == 0, again.stderr
    changed = json.loads((tmp_path / "again.json").read_text())
    assert "timed_changes" not in changed
    assert changed["time"]["step_s"] == change["step_s"]
    # Beside it the script runs as it is, and takes what it did.
    assert changed["unchanged"]["step_s"] == report["time"]["step_s"]
    assert changed["unchanged"]["peak_reserved_bytes"] > 0
    table = again.stderr[again.stderr.index("With these changes, and without") :]
    assert [line.split()[-1] for line in table.splitlines()[2:4]] == ["bucket_cap_mb=48", "is"]


def test_nothing_is_tried_where_nothing_is_exposed_or_nobody_wants_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(rows=512))
    unasked = tally_run("--no-advice", "train.py", cwd=tmp_path, gpu="8xH100-SXM")
    assert "trying changes" not in unasked.stderr
    (tmp_path / "train.py").write_text(SCRIPT.format(rows=1 << 16))
    assert "trying changes" not in tally_run("train.py", cwd=tmp_path, gpu="8xH100-SXM").stderr
