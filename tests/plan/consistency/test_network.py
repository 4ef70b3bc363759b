"""Bytes that a rank sends in a step: by the closed forms of `plan`, and as traced."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch.distributed as dist

import torchtally
from tests.plan.consistency import network_programs as programs
from tests.plan.consistency.network_programs import (
    ACTIVE,
    BATCH,
    EXPERTS,
    HEADS,
    HIDDEN,
    LAYERS,
    MICRO_BATCHES,
    RANKS,
    SEQUENCE,
    VOCABULARY,
    WIDTH,
)
from tests.plan.parallel.builders import llama, workload
from torchtally.plan.architecture.model import Experts
from torchtally.plan.parallel.layout import Layout, Sharding
from torchtally.plan.parallel.volume import sent_bytes
from torchtally.plan.recipes import recipe
from torchtally.trace import Trace
from torchtally.work import Kind, cost_of

MODEL = llama(width=WIDTH, layers=LAYERS, heads=HEADS, ffn=HIDDEN, vocabulary=VOCABULARY)
MIXTURE = replace(
    MODEL,
    kinds=(
        replace(
            MODEL.kinds[0],
            feed_forward=Experts(
                experts=EXPERTS, active=ACTIVE, width=HIDDEN, is_gated=True, activation="silu"
            ),
        ),
    ),
)


GATHERS = {"_allgather_base_", "all_gather_into_tensor"}
SCATTERS = {"_reduce_scatter_base_", "reduce_scatter_tensor"}
SUMS = {"allreduce_", "all_reduce"}


def traced_bytes(trace: Trace) -> Counter[str]:
    """What a rank sends in a step, by operator: (n - 1) of n parts of each payload, of a sum twice
    as many, and of an exchange what is not for itself.
    """
    first, end = trace.steady_step
    sent: Counter[str] = Counter()
    for op in trace.ops:
        call = trace.calls[op.call]
        if not first <= op.clock < end or cost_of(call)[0] is not Kind.COMMUNICATION:
            continue
        group = call.literal("group")
        assert isinstance(group, int)
        ranks = trace.groups[group].ranks
        n, name = len(ranks), call.name.rpartition(".")[2]
        payload = max(spec.bytes for spec in (*call.inputs, *call.outputs))
        if name == "send":
            sent[name] += payload
        elif name == "all_to_all_single":
            splits = call.literal("input_split_sizes") or (1,) * n
            assert isinstance(splits, tuple)
            rows = [part for part in splits if isinstance(part, int)]
            own = rows[ranks.index(trace.world.rank)]
            sent[name] += payload * (sum(rows) - own) // sum(rows)
        elif name != "recv_":
            assert name in GATHERS | SCATTERS | SUMS, name
            sent[name] += (2 if name in SUMS else 1) * payload * (n - 1) // n
    return sent


ONE = Layout(micro_batch=BATCH)
CASES: dict[str, tuple[Callable[[], None], Layout, set[str]]] = {
    "dp": (programs.data_parallel, replace(ONE, data=RANKS), {"allreduce_"}),
    "fsdp": (
        programs.sharded,
        replace(ONE, data=RANKS, shard=Sharding.ZERO3),
        {"_allgather_base_", "_reduce_scatter_base_"},
    ),
    "hsdp": (
        programs.sharded_in_groups,
        replace(ONE, data=RANKS, shard=Sharding.ZERO3, shard_group=2),
        {"_allgather_base_", "_reduce_scatter_base_", "allreduce_"},
    ),
    "tp": (programs.tensor_parallel, replace(ONE, tensor=RANKS), {"all_reduce"}),
    "sp": (
        programs.sequence_parallel,
        replace(ONE, tensor=RANKS, is_sequence_parallel=True),
        {"all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"},
    ),
    "cp": (
        programs.context_parallel_and_data_parallel,
        replace(ONE, context=RANKS),
        {"all_gather_into_tensor", "all_to_all_single", "allreduce_"},
    ),
    "pp": (programs.pipeline, replace(ONE, pipeline=RANKS, micro_batches=MICRO_BATCHES), {"send"}),
    "ep": (
        programs.expert_parallel,
        replace(ONE, data=RANKS, expert=EXPERTS),
        {"all_to_all_single", "allreduce_"},
    ),
}


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", CASES)
def test_a_rank_sends_what_the_closed_forms_say(name: str) -> None:
    program, layout, operators = CASES[name]

    def script() -> None:
        dist.init_process_group("nccl")
        program()

    traced = traced_bytes(torchtally.run(script, gpu=f"{RANKS}xH100-SXM", rank=RANKS - 1))
    assert set(traced) == operators
    model = MIXTURE if name == "ep" else MODEL
    if name == "pp":  # a layer on each stage
        model = replace(model, kinds=(replace(model.kinds[0], count=RANKS),))
    given = workload(model, f"{RANKS}xH100-SXM", sequence=SEQUENCE, recipe=recipe("fp32"))
    sent = sent_bytes(given, layout)
    assert traced.total() == sum(quantity.value for quantity in sent.values())
