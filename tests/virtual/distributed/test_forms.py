"""Collectives that no ranks on the CPU make, held to closed forms; and what runs on the host."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullyShardedDataParallel,
    StateDictType,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg

import torchtally
from tests.virtual.distributed.programs import (
    BATCH,
    WIDTH,
    Program,
    blocks,
    ddp,
    fsdp,
    sequence_parallel,
    train,
)
from tests.virtual.distributed.replicas import replica
from tests.virtual.distributed.shards import flat, sharded
from torchtally.trace import Trace
from torchtally.views.parameters import parameters_of
from torchtally.work import Kind, cost_of

pytestmark = pytest.mark.one_case_in(3)

RANKS = 4


def run(script: Callable[[], object], backend: str = "nccl", rank: int = 0) -> Trace:
    def in_a_group() -> None:
        dist.init_process_group(backend)
        script()

    return torchtally.run(in_a_group, gpu=f"{RANKS}xH100-SXM", rank=rank, writes="private")


def collectives(trace: Trace) -> Counter[tuple[str, int]]:
    """(collective, bytes of its arguments) and how often."""
    counts: Counter[tuple[str, int]] = Counter()
    for op in trace.ops:
        call = trace.calls[op.call]
        if cost_of(call)[0] is Kind.COMMUNICATION:
            name = call.name.rpartition(".")[2]
            counts[name, sum(spec.bytes for spec in call.inputs)] += 1
    return counts


def fsdp1(device: str) -> None:
    train(FullyShardedDataParallel(blocks().to(device), device_id=0), device)


@pytest.mark.parametrize("program", [ddp, fsdp1, fsdp, sequence_parallel])
def test_a_fake_group_of_the_scripts_own_is_as_nccls(program: Program) -> None:
    """torch's backend of that name, which estimators of memory make, whatever ranks there are."""

    def of_its_own() -> None:
        store = fake_pg.FakeStore()
        dist.init_process_group("fake", store=store, rank=0, world_size=RANKS)
        program("cuda")

    traces = [run(lambda: program("cuda")), torchtally.run(of_its_own, gpu="H100-SXM")]
    theirs, ours = (collectives(trace) for trace in traces)
    assert theirs
    assert ours == theirs


def test_objects_of_a_rank_that_cannot_be_run_are_said_to_be_assumed() -> None:
    """A function runs once, as rank 3: it keeps the list that it gave."""
    given = [7]
    trace = run(lambda: dist.broadcast_object_list(given, src=0), rank=3)
    assert given == [7]
    said = "objects of rank 0, which is not simulated, are those of this rank"
    assert said in [note.text for note in trace.notes]


def test_a_gather_in_place_gives_every_rank_the_values_of_this_one() -> None:
    """FSDP gathers from a part of what it gathers into."""
    values: list[list[float]] = []

    def script() -> None:
        whole = torch.zeros(2 * RANKS, device="cuda")
        own = whole[2:4]
        own.copy_(torch.tensor([1.0, 2.0]))
        dist.all_gather_into_tensor(whole, own)
        values.append(whole.tolist())

    run(script, rank=1)
    assert values == [[1.0, 2.0] * RANKS]


@pytest.mark.thorough
def test_power_sgd_reduces_two_vectors_of_each_matrix() -> None:
    """Of rank 1: 64 + 32 numbers of an up projection, as many of a down projection, 3 of each."""

    def script() -> None:
        model = DistributedDataParallel(blocks().cuda())
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(BATCH, 8, WIDTH, device="cuda")).sum().backward()
            optimizer.step()

    counts = collectives(run(script))
    vectors, matrices = 3 * (3 * 32 + 64), 3 * 2 * 64 * 32
    assert {size: n for (name, size), n in counts.items() if name == "allreduce_"} == {
        4 * (vectors + matrices): 2,  # before it begins
        4 * vectors: 2,
        4 * 3 * (64 + 32): 2 * 2,  # P and Q
    }


def context(steps: int = 1) -> None:
    mesh = init_device_mesh("cuda", (RANKS,), mesh_dim_names=("cp",))
    project = nn.Linear(64, 3 * 64).cuda().bfloat16()
    x = torch.randn(2, 128, 64, device="cuda", dtype=torch.bfloat16)
    with context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        assert x.shape == (2, 128 // RANKS, 64)
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in project(x).chunk(3, -1))
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    assert x.shape == (2, 128, 64)


def test_context_parallel_gathers_keys_and_values():
    """B 2, heads 4 of 16, S 128 over 4 ranks: keys and values of 2 * 4 * 32 * 16 bfloat16 each.

    Forward each rank gathers both at once, and backward again. Gradients of both go round, to each
    of the ranks, in float32.
    """
    counts = collectives(run(context))
    both = 2 * (2 * 4 * 32 * 16)
    assert counts == {
        ("all_gather_into_tensor", 2 * both): 2,
        ("all_to_all_single", 4 * both): RANKS,
    }


def test_synchronised_batch_norm_sends_statistics_of_each_channel():
    """C 8: mean, spread and count forward; two sums backward; float32."""

    def script() -> None:
        norm = nn.SyncBatchNorm(8).cuda()
        norm(torch.randn(2, 8, 4, 4, device="cuda", requires_grad=True)).sum().backward()

    assert collectives(run(script)) == {
        ("_allgather_base_", (1 + RANKS) * 4 * (2 * 8 + 1)): 1,
        ("allreduce_", 4 * 2 * 8): 1,
    }


@pytest.mark.parametrize(
    "model",
    [
        lambda: flat("cuda", cpu_offload=CPUOffload(offload_params=True)),
        lambda: sharded("cuda", offload_policy=CPUOffloadPolicy()),
    ],
)
def test_offloaded_shards_are_trained_on_the_host(model: Callable[[], nn.Module]) -> None:
    """The optimizer's step and its state are no work of the device."""
    trace = run(lambda: train(model(), "cuda"))
    assert len(trace.step_ends) == 2
    assert not any("sqrt" in trace.calls[op.call].name for op in trace.ops)
    whole = sum(parameter.numel() for parameter in blocks().parameters())
    state = trace.host_state
    assert state is not None
    assert (state.elements, state.whole_elements) == (whole // RANKS, whole)
    assert state.parameter_bytes == state.gradient_bytes == 4 * whole // RANKS
    scalars = state.optimizer_bytes - 2 * 4 * whole // RANKS  # AdamW counts steps
    assert 4 <= scalars <= 4 * 3 * 6
    parameters = parameters_of(torchtally.account(trace))
    assert parameters is not None
    assert (parameters.elements, parameters.own_elements) == (whole, whole // RANKS)


def test_without_offload_nothing_is_stepped_on_the_host() -> None:
    assert run(lambda: train(sharded("cuda"), "cuda")).host_state is None


@pytest.mark.thorough
@pytest.mark.parametrize("is_async", [False, True])
def test_a_distributed_checkpoint_is_found_by_a_load(*, is_async: bool, tmp_path: Path) -> None:
    """The files are those of this rank alone."""

    def script() -> None:
        model = sharded("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, "cuda")
        weights, state = get_state_dict(model, optimizer)
        everything = {"model": weights, "optimizer": state}
        folder = tmp_path / "checkpoint"
        if is_async:
            dcp.async_save(everything, checkpoint_id=folder).result()  # type: ignore[union-attr]
        else:
            dcp.save(everything, checkpoint_id=folder)
        assert sorted(path.name for path in folder.iterdir()) == [".metadata", "__0_0.distcp"]
        dcp.load(everything, checkpoint_id=folder)
        with pytest.raises(dcp.api.CheckpointException):
            dcp.load(everything, checkpoint_id=tmp_path / "another")

    run(script, "cpu:gloo,cuda:nccl")
    assert not (tmp_path / "checkpoint").exists()  # the run's own


def test_ddp_warns_of_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Its logger in C++ has clocks for CPU and CUDA tensors alone."""
    run(lambda: train(replica("cuda"), "cuda"))
    assert "Warning" not in capfd.readouterr().err


@pytest.mark.parametrize("rank", [0, 2])
def test_a_sharded_optimizer_gathers_the_state_of_all_parameters(rank: int) -> None:
    """Each rank keeps the state of some parameters; the one that consolidates has all of them."""

    def script() -> None:
        model = nn.Sequential(*(nn.Linear(8, 4 + number) for number in range(5))).cuda()
        parameters = list(model.parameters())
        optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        optimizer.consolidate_state_dict(to=rank)
        weights = optimizer.state_dict()
        shapes = [state["exp_avg"].shape for state in weights["state"].values()]
        assert shapes == [parameter.shape for parameter in parameters]
        optimizer.load_state_dict(weights)

    run(script, rank=rank)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("keeps_parameters", [False, True])
def test_flat_parameters_hold_a_shard_alone_once_the_whole_is_gone(keeps_parameters: bool) -> None:
    def script() -> None:
        layer = nn.Linear(1024, 1024, bias=False, device="cuda")
        whole_bytes = torch.cuda.memory_allocated()
        model = FullyShardedDataParallel(layer, use_orig_params=keeps_parameters)
        assert torch.cuda.memory_allocated() == whole_bytes // RANKS
        assert len(list(model.parameters())) == 1

    run(script)


@pytest.mark.parametrize("rank", [0, RANKS - 1])
@pytest.mark.parametrize("kind", StateDictType)
def test_every_form_of_a_sharded_models_state_is_saved_and_loaded(
    kind: StateDictType, rank: int
) -> None:
    def script() -> None:
        model = flat("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, "cuda")
        optimizer.step()
        with FullyShardedDataParallel.state_dict_type(model, kind):
            weights = model.state_dict()
            state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
            model.load_state_dict(weights)
            state = FullyShardedDataParallel.optim_state_dict_to_load(model, optimizer, state)
            optimizer.load_state_dict(state)
        if kind is not StateDictType.FULL_STATE_DICT:
            shards = [value for value in weights.values() if isinstance(value, ShardedTensor)]
            assert shards
            assert {len(each.metadata().shards_metadata) for each in shards} == {RANKS}

    run(script, rank=rank)
