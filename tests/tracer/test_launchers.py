"""Launchers in front of a script, and the ranks that they would start."""

import argparse
import os
import sys
from types import ModuleType

import pytest

from torchtally.chips import cluster
from torchtally.cli.arguments import RunParser
from torchtally.errors import UsageError
from torchtally.trace import World
from torchtally.tracer.launchers import launch_of
from torchtally.tracer.script_file import Script
from torchtally.tracer.session import world_of


def script(*words: str, is_module: bool = False) -> Script:
    return Script(words[0], words[1:], is_module=is_module)


@pytest.mark.parametrize(
    ("words", "is_module", "nodes", "ranks_per_node"),
    [
        ("torchrun --nproc_per_node=4 train.py --lr 1", False, 1, 4),
        ("torchrun --standalone --nproc-per-node 4 train.py --lr 1", False, 1, 4),
        ("/usr/bin/torchrun --nnodes 2:16 --nproc_per_node gpu train.py --lr 1", False, 16, None),
        ("torch.distributed.run --nnodes=2 --nproc_per_node=8 train.py --lr 1", True, 2, 8),
        ("accelerate launch --num_processes 8 train.py --lr 1", False, 1, 8),
        (
            "accelerate launch --num_machines 2 --num_processes 16 --machine_rank 0 "
            "--main_process_ip x --main_process_port 1 train.py --lr 1",
            False, 2, 8,
        ),
    ],
)  # fmt: skip
def test_a_launcher_is_asked_what_it_would_start(
    words: str, is_module: bool, nodes: int, ranks_per_node: int | None
) -> None:
    launch = launch_of(script(*words.split(), is_module=is_module))
    assert launch is not None
    assert launch.script == script("train.py", "--lr", "1")
    assert (launch.nodes, launch.ranks_per_node) == (nodes, ranks_per_node)


def test_what_accelerate_tells_its_script() -> None:
    words = "accelerate launch --num_processes 2 --mixed_precision bf16 train.py"
    launch = launch_of(script(*words.split()))
    assert launch is not None
    assert launch.environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "RANK" not in launch.environment


@pytest.mark.parametrize("words", ["train.py", "accelerate test", "python"])
def test_other_programs_are_scripts(words: str) -> None:
    assert launch_of(script(*words.split())) is None


def test_deepspeeds_gives_the_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own parser, of which these are the names that are used; it sees a GPU meanwhile."""
    accelerators = []

    def parse_args(words: list[str]) -> argparse.Namespace:
        accelerators.append(os.environ.get("DS_ACCELERATOR"))
        return argparse.Namespace(
            user_script=words[2], user_args=words[3:], num_gpus=int(words[1]), num_nodes=-1,
            module=False, no_local_rank=False,
        )  # fmt: skip

    runner = ModuleType("deepspeed.launcher.runner")
    runner.parse_args = parse_args  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed.launcher.runner", runner)
    launch = launch_of(script("deepspeed", "--num_gpus", "4", "train.py", "--lr", "1"))
    assert launch is not None
    assert (launch.nodes, launch.ranks_per_node) == (1, 4)
    assert launch.script_of(3).arguments == ("--local_rank=3", "--lr", "1")
    assert accelerators == ["cuda"]
    assert "DS_ACCELERATOR" not in os.environ


def test_a_launcher_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed.launcher.runner", None)
    with pytest.raises(UsageError, match="not installed"):
        launch_of(script("deepspeed", "train.py"))


def test_the_world_of_a_launch() -> None:
    launch = launch_of(script(*"torchrun --nnodes 2 --nproc_per_node 8 train.py".split()))
    assert world_of(cluster("H100-SXM"), 9, launch) == World(16, 8, 9)
    assert world_of(cluster("2x8xH100-SXM"), 9, launch) == World(16, 8, 9)
    assert world_of(cluster("4x8xH100-SXM"), 0, launch) == World(16, 8, 0)
    with pytest.raises(UsageError, match=r"starts 2 x 8 ranks, and --gpu gives 1 x 8 GPUs"):
        world_of(cluster("8xH100-SXM"), 0, launch)
    with pytest.raises(UsageError, match="16 GPUs have the ranks 0 to 15"):
        world_of(cluster("H100-SXM"), 16, launch)
    assert world_of(cluster("8xH100-SXM"), 3) == World(8, 8, 3)
    assert world_of(cluster("H100-SXM")) == World()


@pytest.mark.parametrize(
    ("words", "script_and_arguments"),
    [
        ("torchrun -m pkg.train -- --run=x", ["torchrun", "-m", "pkg.train", "--", "--run=x"]),
        ("-m torch.distributed.run train.py -- --run=x", ["train.py", "--", "--run=x"]),
        ("train.py -- --gpu=x", ["train.py", "--gpu=x"]),
    ],
)
def test_the_separator_is_the_launchers(words: str, script_and_arguments: list[str]) -> None:
    """`torchrun -m pkg.train -- --run=x` would take --run for --run-path without it."""
    parser = RunParser(prog="tally run")
    parser.add_argument("-m", dest="module")
    _, theirs = parser.split(words.split())
    assert theirs == script_and_arguments
