"""Layouts in configurations of frameworks: what is written is read again as it was."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.plan.parallel.builders import workload
from torchtally.errors import UsageError
from torchtally.plan.architecture.lookup import model
from torchtally.plan.flops import Recompute
from torchtally.plan.frameworks.configuration import FRAMEWORKS, configuration
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.layout_words import parse_layout

LLAMA = workload(model("llama-3.1-8b"), "16xH100-SXM", sequence=8192)
CHIPS = 16
LAYOUTS: dict[str, Layout] = {
    "ddp": Layout(data=16, micro_batch=2, micro_batches=4),
    "zero-1": Layout(data=16, shard=Sharding.ZERO1, micro_batches=2),
    "zero-2": Layout(data=16, shard=Sharding.ZERO2, micro_batches=2),
    "fsdp": Layout(data=16, shard=Sharding.ZERO3, micro_batch=4, recompute=Recompute.FULL),
    "hsdp": Layout(data=16, shard=Sharding.ZERO3, shard_group=8),
    "tp": Layout(data=4, tensor=4, is_sequence_parallel=True, shard=Sharding.ZERO1),
    "cp": Layout(data=8, context=2, shard=Sharding.ZERO3),
    "3d": Layout(
        data=2, tensor=2, is_sequence_parallel=True, pipeline=4, micro_batches=8,
        schedule=Schedule.INTERLEAVED, virtual_stages=2, shard=Sharding.ZERO1,
    ),
    "op": Layout(data=16, shard=Sharding.ZERO3, recompute=Recompute.OPERATORS),
    "1f1b": Layout(data=4, pipeline=4, micro_batches=8, shard=Sharding.ZERO2),
}  # fmt: skip
SUFFIXES = {"torchtitan": ".toml", "megatron": ".sh", "deepspeed": ".json", "accelerate": ".yaml"}


RUN = [
    (framework, name)
    for framework, its in FRAMEWORKS.items()
    for name, layout in LAYOUTS.items()
    if its.is_its(layout)
]


@pytest.mark.parametrize(("framework", "name"), RUN)
def test_what_is_written_is_read_again(framework: str, name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    place = tmp_path / f"layout{SUFFIXES[framework]}"
    place.write_text(FRAMEWORKS[framework].written(layout, LLAMA))
    layout_file = configuration(str(place), LLAMA.model.layers)
    batch = layout_file.batch or layout.global_batch
    # accelerate leaves the batch to the script, and replicates what DeepSpeed's file does not say.
    base = Layout(micro_batch=layout.micro_batch) if framework == "accelerate" else Layout()
    read = parse_layout(layout_file.words, CHIPS, batch, base)
    if framework == "deepspeed":
        layout = parse_layout(layout_file.words, CHIPS, layout.global_batch, Layout())
    assert read == layout


MIXTURE = workload(model("deepseek-v3"), "64xH100-SXM", sequence=4096)


@pytest.mark.parametrize("framework", ["torchtitan", "megatron"])
def test_experts_across_tensor_parallelism_are_written_and_read(
    framework: str, tmp_path: Path
) -> None:
    """Whole experts over all of tp; torchtitan has no other parts of them than all and none."""
    across = Layout(
        data=8, tensor=8, is_sequence_parallel=True, expert=16, expert_tensor=1,
        shard=Sharding.ZERO3, micro_batches=2,
    )  # fmt: skip
    place = tmp_path / f"layout{SUFFIXES[framework]}"
    for layout in (across, replace(across, expert=8, expert_tensor=None)):
        assert FRAMEWORKS[framework].is_its(layout)
        place.write_text(FRAMEWORKS[framework].written(layout, MIXTURE))
        layout_file = configuration(str(place), MIXTURE.model.layers)
        assert parse_layout(layout_file.words, 64, layout.global_batch, Layout()) == layout
    assert FRAMEWORKS[framework].is_its(replace(across, expert_tensor=2)) is (
        framework == "megatron"
    )


def test_stages_that_do_not_divide_are_megatrons_layout(tmp_path: Path) -> None:
    """61 layers over 8 stages of two chunks: 13 chunks of four, three of three."""
    uneven = Layout(
        data=8, pipeline=8, schedule=Schedule.INTERLEAVED, virtual_stages=2, micro_batches=8
    )
    text = FRAMEWORKS["megatron"].written(uneven, MIXTURE)
    line = f"--pipeline-model-parallel-layout Et*4|{'t*4|' * 12}{'t*3|' * 2}t*3L\n"
    assert line in text
    place = written(tmp_path, "train.sh", text)
    words = configuration(place, 61).words
    assert parse_layout(words, 64, uneven.global_batch, Layout()) == uneven
    folded = (
        "--pipeline-model-parallel-size 16 --pipeline-model-parallel-layout 'Et*3|(tt|)*29,m|L'"
    )
    assert configuration(written(tmp_path, "folded.sh", folded), 61).words == "pp 16x2, ddp"


def test_megatron_splits_experts_as_all_else_unless_told(tmp_path: Path) -> None:
    text = "--tensor-model-parallel-size 4 --sequence-parallel --expert-model-parallel-size 8"
    layout_file = configuration(written(tmp_path, "train.sh", text), 32)
    assert layout_file.words == "tp 4, ep 8, etp 4, sp, ddp"


def test_what_a_framework_has() -> None:
    lacking = {
        framework: {name for name in LAYOUTS if (framework, name) not in RUN}
        for framework in FRAMEWORKS
    }
    assert lacking == {
        "torchtitan": {"zero-1", "tp", "3d"},
        "megatron": {"hsdp", "op"},
        "deepspeed": {"hsdp", "tp", "cp", "3d", "1f1b"},
        "accelerate": {"zero-1", "tp", "3d", "op", "1f1b"},
    }


MEGATRON = """\
#!/bin/bash
# --tensor-model-parallel-size 99
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size 2
    --pipeline-model-parallel-size=4 --num-layers 32
    --num-layers-per-virtual-pipeline-stage 4
    --sequence-parallel
    --use-distributed-optimizer
    --micro-batch-size 1 \\
    --global-batch-size 256
    --recompute-granularity "full"
)
torchrun pretrain_gpt.py ${MODEL_PARALLEL_ARGS[@]}
"""


def written(tmp_path: Path, name: str, text: str) -> str:
    place = tmp_path / name
    place.write_text(text)
    return str(place)


def test_a_script_that_starts_megatron(tmp_path: Path) -> None:
    layout_file = configuration(written(tmp_path, "train.sh", MEGATRON), 32)
    assert layout_file.framework == "Megatron-LM"
    assert layout_file.words == "tp 2, pp 4x2, sp, zero-1, mb 1, full"
    assert layout_file.batch == 256


def test_torchtitans_own_defaults(tmp_path: Path) -> None:
    text = "[parallelism]\ntensor_parallel_degree = 4\n[training]\nlocal_batch_size = 2\n"
    layout_file = configuration(written(tmp_path, "llama.toml", text), 32)
    assert layout_file.words == "tp 4, sp, mb 2, zero-3, op"
    assert layout_file.batch is None
    text += '[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"\n'
    with pytest.raises(UsageError, match="selective_ac_option '2' is not supported"):
        configuration(written(tmp_path, "every_second.toml", text), 32)


def test_configurations_that_people_have(tmp_path: Path) -> None:
    zero = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}
    assert configuration(written(tmp_path, "ds.json", json.dumps(zero)), None).words == "zero-3"
    fsdp: dict[str, Any] = {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_sharding_strategy": "SHARD_GRAD_OP", "fsdp_version": 1},
    }
    place = written(tmp_path, "fsdp.yaml", yaml.safe_dump(fsdp))
    assert configuration(place, None).words == "zero-2"


def test_accelerate_itself_takes_what_is_written(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    layout = LAYOUTS["hsdp"]
    place = written(tmp_path, "hsdp.yaml", FRAMEWORKS["accelerate"].written(layout, LLAMA))
    loaded = load_config_from_file(place)
    assert loaded.num_processes == 16
    assert loaded.fsdp_config["fsdp_version"] == 2
    assert loaded.parallelism_config["parallelism_config_dp_shard_size"] == 8


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "x = [", "a.toml: not TOML"),
        ("a.json", "{", "a.json: not JSON"),
        ("a.json", "[]", "no key with a value"),
        ("a.json", "{}", "no layout found"),
        ("a.json", '{"zero_optimization": {"stage": 7}}', "stage is 0 to 3, got 7"),
        ("a.yaml", "a: [", "a.yaml: not YAML"),
        ("a.yaml", "a: 1", "no layout found"),
        ("a.yaml", "distributed_type: DEEPSPEED", "leaves the layout to DeepSpeed"),
        ("a.sh", "echo", "no arguments of Megatron-LM"),
        ("a.sh", "--tensor-model-parallel-size $TP", "which only the shell can expand"),
        ("a.sh", "--tensor-model-parallel-size 0", "at least 1, got '0'"),
        ("a.toml", "[parallelism]\ntensor_parallel_degree = 'two'", "at least 1, got 'two'"),
    ],
)
def test_what_cannot_be_read_is_said(name: str, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        configuration(written(tmp_path, name, text), 32)
    assert said in str(caught.value)
