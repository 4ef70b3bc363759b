"""Layouts as configurations of torchtitan's: every field where its trainer reads it."""

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from tests.plan.parallel.builders import llama, workload
from torchtally.errors import UsageError
from torchtally.plan.architecture.lookup import model
from torchtally.plan.flops import Recompute
from torchtally.plan.frameworks.torchtitan import config_text
from torchtally.plan.parallel.layout import Layout, Schedule, Sharding
from torchtally.plan.parallel.step import Workload

LLAMA = workload(model("llama-3.1-8b"), "16xH100-SXM", sequence=8192)


def config(layout: Layout, given: Workload = LLAMA) -> dict[str, Any]:
    return tomllib.loads(config_text(layout, given))


def test_stages_and_shards() -> None:
    values = config(
        Layout(
            data=4, shard=Sharding.ZERO3, tensor=2, pipeline=2, micro_batch=2, micro_batches=8,
            schedule=Schedule.INTERLEAVED, virtual_stages=4, recompute=Recompute.FULL,
        )
    )  # fmt: skip
    assert values["model"] == {"name": "llama3", "flavor": "8B"}
    assert values["training"] == {"local_batch_size": 16, "global_batch_size": 64, "seq_len": 8192}
    assert values["parallelism"] == {
        "data_parallel_replicate_degree": 1,
        "data_parallel_shard_degree": 4,
        "fsdp_reshard_after_forward": "always",
        "tensor_parallel_degree": 2,
        "context_parallel_degree": 1,
        "pipeline_parallel_degree": 2,
        "pipeline_parallel_schedule": "Interleaved1F1B",
        "pipeline_parallel_microbatch_size": 2,
        "pipeline_parallel_layers_per_stage": 4,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }
    assert values["activation_checkpoint"] == {"mode": "full"}


def test_groups_that_share_and_replicas() -> None:
    """Context parallelism shards, too: torchtitan multiplies both degrees."""
    layout = Layout(data=8, context=2, shard=Sharding.ZERO2, shard_group=8, micro_batches=4)
    settings = config(layout)["parallelism"]
    assert settings["data_parallel_replicate_degree"] == 2
    assert settings["data_parallel_shard_degree"] == 4
    assert settings["context_parallel_degree"] == 2
    assert settings["fsdp_reshard_after_forward"] == "never"
    plain = config(Layout(data=16, micro_batches=4))
    assert plain["parallelism"]["data_parallel_replicate_degree"] == 16
    assert plain["parallelism"]["data_parallel_shard_degree"] == 1
    assert plain["training"]["local_batch_size"] == 1
    assert plain["training"]["global_batch_size"] == 64


def test_a_model_that_torchtitan_does_not_have() -> None:
    with pytest.raises(UsageError, match="not one of torchtitan's models: Llama 3 8B"):
        config(Layout(data=16), replace(LLAMA, model=llama()))
