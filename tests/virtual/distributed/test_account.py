"""What the account of one rank says of all: parameters, batches, gathered weights and lines."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torchtally
from tests.virtual.distributed import programs
from tests.virtual.distributed.programs import STEPS, WIDTH, Program
from torchtally.chips import chip
from torchtally.ledger import Ledger, line_of
from torchtally.memory import Category
from torchtally.report.formats import render
from torchtally.report.ledger import ledger_report
from torchtally.report.report import Look
from torchtally.timing.roofline import Roofline
from torchtally.views.parameters import parameters_of
from torchtally.views.ranks import data_parallel_ranks
from torchtally.views.throughput import throughput

pytestmark = pytest.mark.one_case_in(3)

ELEMENTS = 3 * (2 * WIDTH + (WIDTH + 1) * 2 * WIDTH + (2 * WIDTH + 1) * WIDTH)
RANKS = 4
ROOFLINE = Roofline(chip("H100-SXM"))


def account(program: Program) -> Ledger:
    def run() -> None:
        dist.init_process_group("nccl")
        program("cuda")

    ledger = torchtally.account(torchtally.run(run, gpu=f"{RANKS}xH100-SXM"), roofline=ROOFLINE)
    ledger.check()
    return ledger


@pytest.mark.parametrize(
    ("program", "own", "batches"),
    [
        (programs.ddp, ELEMENTS, RANKS),
        (programs.zero, ELEMENTS, RANKS),
        (programs.fsdp, ELEMENTS // RANKS, RANKS),
        (programs.hsdp, ELEMENTS // 2, RANKS),
        # Gradients of norms are reduced, and their ranks work on one batch.
        (programs.sequence_parallel, None, None),
    ],
)
def test_parameters_and_batches_of_all_ranks(
    program: Program, own: int | None, batches: int | None
) -> None:
    ledger = account(program)
    parameters = parameters_of(ledger)
    assert parameters is not None
    assert parameters.elements == ELEMENTS
    assert not parameters.is_rank_share
    if own is not None:
        assert parameters.own_elements == own
    assert parameters.own_elements < ELEMENTS or own == ELEMENTS
    assert data_parallel_ranks(ledger) == batches


def gathered_for_a_while(device: str) -> None:
    """As DeepSpeed's ZeRO 3: parameters are empty but while they are computed with, name their
    shards, which lie in one storage, are gathered at once, and have float32 master copies.
    """
    rank, own = dist.get_rank(), WIDTH * WIDTH // RANKS
    layers = [nn.Linear(WIDTH, WIDTH, False, device, torch.bfloat16) for _ in range(2)]
    model = nn.Sequential(*layers)
    flat = torch.empty(2 * own, device=device, dtype=torch.bfloat16)
    for shard, layer in zip(flat.chunk(2), layers, strict=True):
        shard.copy_(layer.weight.detach().view(RANKS, own)[rank])
        layer.weight.ds_tensor, layer.weight.ds_numel = shard, WIDTH * WIDTH
        layer.weight.data = torch.empty(0, device=device, dtype=torch.bfloat16)
    master = flat.float().requires_grad_()
    optimizer = torch.optim.AdamW([master])
    for _ in range(2):
        gathered = torch.empty(RANKS, 2 * own, device=device, dtype=torch.bfloat16)
        dist.all_gather_into_tensor(gathered, torch.cat([each.weight.ds_tensor for each in layers]))
        for layer, part in zip(layers, gathered.chunk(2, dim=1), strict=True):
            layer.weight.data = part.reshape(WIDTH, WIDTH)
        model(torch.ones(4, WIDTH, device=device, dtype=torch.bfloat16)).sum().backward()
        gradient = torch.empty_like(flat)
        grads = torch.cat([layer.weight.grad.view(RANKS, own) for layer in layers], dim=1)
        dist.reduce_scatter_tensor(gradient, grads)
        master.grad = gradient.float()
        for layer in layers:
            layer.weight.grad = None
            layer.weight.data = torch.empty(0, device=device, dtype=torch.bfloat16)
        optimizer.step()
        flat.copy_(master.detach())


def test_parameters_that_are_gathered_for_a_while_are_counted_whole() -> None:
    ledger = account(gathered_for_a_while)
    parameters = parameters_of(ledger)
    assert parameters is not None
    assert (parameters.elements, parameters.trained) == (2 * WIDTH * WIDTH,) * 2
    assert parameters.own_elements == 2 * WIDTH * WIDTH // RANKS
    assert not parameters.is_rank_share
    held = dict.fromkeys(Category, 0)
    for storage, category in ledger.memory.alive_at_peak:
        held[category] += storage.bytes
    assert held[Category.PARAMETERS] == 2 * parameters.own_elements  # bfloat16
    # The master copy and two moments.
    assert held[Category.OPTIMIZER_STATE] == 3 * 4 * parameters.own_elements


def cut_by_hand(device: str) -> None:
    """As Megatron-LM's column-parallel layer: each rank has some of the rows."""
    layer = nn.Linear(WIDTH, WIDTH // RANKS, bias=False, device=device)
    optimizer = torch.optim.SGD(layer.parameters())
    for _ in range(2):
        own = layer(torch.ones(4, WIDTH, device=device, requires_grad=True))
        dist.all_gather([torch.empty_like(own) for _ in range(RANKS)], own.detach())
        own.sum().backward()
        optimizer.step()


def a_stage(device: str) -> None:
    """The first of a pipeline, whose gradients all ranks seem to add up."""
    layer = nn.Linear(WIDTH, WIDTH // RANKS, bias=False, device=device)
    optimizer = torch.optim.SGD(layer.parameters())
    for _ in range(2):
        out = layer(torch.ones(4, WIDTH, device=device))
        dist.send(out.detach(), 1)
        gradient = torch.empty_like(out)
        dist.recv(gradient, 1)
        out.backward(gradient)
        dist.all_reduce(layer.weight.grad)
        optimizer.step()


@pytest.mark.parametrize("program", [cut_by_hand, a_stage])
def test_parameters_that_may_be_a_part_are_said_to_be_of_the_rank(program: Program) -> None:
    ledger = account(program)
    parameters = parameters_of(ledger)
    assert parameters is not None
    assert parameters.elements == WIDTH * WIDTH // RANKS
    assert parameters.is_rank_share
    page = render(ledger_report(ledger), "text", Look(width=100))
    assert f"{WIDTH * WIDTH // RANKS} parameters on this rank" in page


def experts_apart(device: str, *, is_tensor_parallel: bool = False, steps: int = 2) -> None:
    """A small layer that all ranks have, and a large one of each: rows are sent to it by all-to-all
    and back. Under tensor parallelism all ranks have the same rows, and sum products of them.
    """
    shared = nn.Linear(WIDTH, WIDTH, bias=False, device=device)
    expert = nn.Linear(WIDTH, 64 * WIDTH, bias=False, device=device)
    optimizer = torch.optim.SGD([*shared.parameters(), *expert.parameters()])
    for _ in range(steps):
        rows = shared(torch.ones(64 * RANKS, WIDTH, device=device))
        dist.all_reduce(rows.detach() if is_tensor_parallel else rows.detach().mean(0))
        sent = torch.empty_like(rows)
        dist.all_to_all_single(sent, rows.detach())
        (expert(sent.requires_grad_()).sum() + rows.sum()).backward()
        dist.all_reduce(shared.weight.grad)
        optimizer.step()


def experts_among_tensor_parallel_ranks(device: str) -> None:
    experts_apart(device, is_tensor_parallel=True)


def experts_for_long(device: str) -> None:
    """A row is summed in each step, in all as many bytes as there are gradients and twice more."""
    experts_apart(device, steps=3 * WIDTH)


@pytest.mark.parametrize(
    ("program", "ranks"),
    [
        (experts_apart, RANKS),
        (experts_for_long, RANKS),
        (experts_among_tensor_parallel_ranks, None),
    ],
)
def test_experts_are_trained_on_the_rows_of_all_ranks(program: Program, ranks: int | None) -> None:
    """Of 65 parts of the weights one is reduced: those of no expert."""
    assert data_parallel_ranks(account(program)) == ranks


def test_a_rank_alone_has_no_others() -> None:
    ledger = torchtally.account(torchtally.run(lambda: None, gpu="H100-SXM"))
    assert data_parallel_ranks(ledger) is None


@pytest.mark.thorough
def test_samples_of_all_ranks_count() -> None:
    rates = throughput(account(programs.ddp))
    assert rates is not None
    assert rates.samples is not None
    assert rates.samples_per_s == pytest.approx(rates.samples.size * RANKS / rates.seconds)


def test_what_fsdp_gathers_and_reduces_has_categories_of_its_own() -> None:
    memory = account(programs.fsdp).memory
    sizes = {category: part.peak_bytes for category, part in memory.by_category().items()}
    block_bytes = ELEMENTS // 3 * 4
    # The buffer of one gather, and the parameters that it is taken apart into.
    assert sizes[Category.GATHERED_PARAMETERS] >= 2 * block_bytes
    assert sizes[Category.COMMUNICATION_BUFFERS] >= block_bytes
    assert sizes[Category.PARAMETERS] < ELEMENTS * 4 / RANKS * 1.5


def test_ddps_buckets_are_communication_buffers() -> None:
    memory = account(programs.ddp).memory
    buffers = memory.by_category()[Category.COMMUNICATION_BUFFERS]
    assert buffers.peak_bytes >= ELEMENTS * 4


@pytest.mark.thorough
def test_a_gather_belongs_to_the_module_that_it_serves() -> None:
    """Also one that runs ahead, in the backward pass of the module before."""
    ledger = account(programs.fsdp)
    sites = ledger.trace.sites
    names = [
        sites[entry.op.site].module
        for entry in ledger.reported
        if "allgather" in entry.call.name or "reduce_scatter" in entry.call.name
    ]
    blocks = ["0", "1", "2"]
    # Forward in order; backward gathers go one ahead of the reductions.
    assert names[:3] == blocks
    assert sorted(names) == sorted(3 * blocks)
    lines = {
        line_of(entry)
        for entry in ledger.reported
        if "allgather" in entry.call.name and sites[entry.op.site].module in blocks
    }
    assert {Path(line.file).name for line in lines if line is not None} == {"programs.py"}
    assert len(lines) == 1
    assert len(ledger.trace.step_ends) == STEPS


@pytest.mark.thorough
def test_modules_have_the_class_that_the_script_gave_them() -> None:
    """FSDP2 makes a class of its own, FSDPBlock, of each."""
    sites = account(programs.fsdp).trace.sites
    assert "Block" in {site.module_class for site in sites}
    assert "FSDPBlock" not in {site.module_class for site in sites}


@pytest.mark.thorough
def test_ddp_waits_for_its_reductions_before_the_optimizer() -> None:
    """C++ waits for their futures, where no Python sees it: who reads the buckets waits."""
    trace = account(programs.ddp).trace
    first, end = trace.steady_step
    reductions = [
        op
        for op in trace.ops
        if first <= op.clock < end and trace.calls[op.call].name == "c10d.allreduce_"
    ]
    assert reductions
    for op in reductions:
        waits = [wait for wait in trace.stream_waits if wait.other == op.stream]
        assert any(wait.tick > op.clock and wait.until > op.clock for wait in waits), op
        assert all(wait.tick < end for wait in waits if op.clock < wait.until <= end)
