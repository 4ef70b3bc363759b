"""Dumps as of PyTorch's flight recorder, read and matched by its own analyzer."""

import argparse
import pickle
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.flight_recorder.components.builder import build_db

import torchtally
from tests.cli.run_tally import tally_run
from tests.virtual.distributed import programs
from tests.virtual.distributed.replicas import REPLICAS
from tests.warm import TALLY, warm
from torchtally.chips import chip
from torchtally.timing.roofline import Roofline
from torchtally.views.flight_record import VERSION, flight_record

pytestmark = pytest.mark.one_case_in(3)

RANKS = 4
OPTIONS = argparse.Namespace(
    verbose=False, just_print_entries=False, allow_incomplete_ranks=False, mismatch_cap=10
)


def dumps_of(program: programs.Program) -> dict[str, dict[str, Any]]:
    """Of every rank, as `torchfrtrace` loads them."""

    def script() -> None:
        dist.init_process_group("nccl")
        program("cuda")

    details = {}
    for rank in range(RANKS):
        trace = torchtally.run(script, gpu=f"{RANKS}xH100-SXM", rank=rank)
        record = flight_record(torchtally.account(trace, roofline=Roofline(chip("H100-SXM"))))
        details[f"rank_{rank}"] = {"rank": rank, "host_name": f"host_rank{rank}", **record}
    return details


def unmatched(details: dict[str, dict[str, Any]]) -> int:
    """Calls that the analyzer finds no partner for."""
    calls = build_db(deepcopy(details), OPTIONS, VERSION).ncclcalls  # type: ignore[no-untyped-call]
    assert len(calls) == sum(len(dump["entries"]) for dump in details.values())
    return sum(call.collective_id is None for call in calls)


@pytest.mark.parametrize(
    "program", [programs.hsdp, programs.sequence_parallel, REPLICAS["ddp_buffers"]]
)
def test_every_collective_of_every_rank_is_matched(program: programs.Program) -> None:
    details = dumps_of(program)
    assert unmatched(details) == 0
    entries = details["rank_0"]["entries"]
    assert len(entries) >= 8
    assert all(entry["duration_ms"] > 0 and entry["frames"] for entry in entries)
    assert [entry["record_id"] for entry in entries] == list(range(len(entries)))
    assert any(Path(frame["filename"]).name == "programs.py" for frame in entries[-1]["frames"])


@pytest.mark.thorough("test_every_collective_of_every_rank_is_matched")
def test_another_size_on_one_rank_is_a_mismatch() -> None:
    """The analyzer can fail."""
    details = dumps_of(programs.hsdp)
    details["rank_1"]["entries"][0]["output_sizes"] = [[3]]
    assert unmatched(details)


@pytest.mark.thorough
def test_a_command_writes_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('nccl')\n"
        "dist.all_reduce(torch.ones(4, device='cuda'))\n"
    )
    run = tally_run("--rank", "0,1", "--no-advice", "train.py", cwd=tmp_path, gpu="2xH100-SXM")
    assert run.code == 0, run.stderr
    prefix = str(tmp_path / "rank_")
    shown = warm(TALLY, "export", str(run.file), "--to", "flight-recorder", "-o", prefix)
    subprocess.run(shown, check=True, cwd=tmp_path)
    for rank in range(2):
        (entry,) = pickle.loads(Path(f"{prefix}{rank}").read_bytes())["entries"]
        assert entry["profiling_name"] == "nccl:all_reduce"
        assert entry["input_sizes"] == entry["output_sizes"] == [[4]]
        assert entry["input_dtypes"] == ["Float"]
