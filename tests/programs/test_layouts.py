"""A step on several GPUs, written out of three layers, is the run of all on virtual ranks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed
from msgspec.structs import replace
from torch import nn

from tests.programs.families import FAMILIES, GPU
from torchtally import run
from torchtally.chips import chip
from torchtally.models.config_symbols import symbols_of
from torchtally.models.recorded import TrainingMode, exact_training, recorded_training
from torchtally.models.spread import Spread, check_spread
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.layout_words import parse_layout
from torchtally.programs import write
from torchtally.programs.checked import differences
from torchtally.programs.plain import plain
from torchtally.programs.sizes import RANKS
from torchtally.trace import Trace, World

Wrap = Callable[[Any], nn.Module]


def layout_of(words: str) -> Layout:
    layout = parse_layout(words, 1, None, Layout(micro_batch=2))
    check_spread(layout)
    return layout


def fully_sharded(model: Any, **options: Any) -> nn.Module:
    """As torchtitan and PyTorch's tutorials do it: a group for each layer, one for the rest."""
    from torch.distributed.fsdp import fully_shard

    layers = model.transformer.h if hasattr(model, "transformer") else model.model.layers
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)
    return model.to_empty(device="cuda")  # type: ignore[no-any-return]


def hybrid(model: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replica", "shard"))
    return fully_sharded(model, mesh=mesh)


def split(tensor: int, shards: int, experts: int = 1) -> Wrap:
    def wrap(model: Any) -> nn.Module:
        from transformers.distributed import DistributedConfig
        from transformers.distributed.utils import initialize_distributed_mesh

        config = DistributedConfig(tp_size=tensor, fsdp_size=shards, ep_size=experts)
        _, mesh = initialize_distributed_mesh(config)
        split_up: Any = model.maybe_distribute_model(model, config, mesh)
        return split_up.to_empty(device="cuda")  # type: ignore[no-any-return]

    return wrap


CASES: dict[str, tuple[str, str, Wrap]] = {
    "fsdp2": ("llama", "dp 8/z3", fully_sharded),
    "fsdp2 of gpt2": ("gpt2", "dp 2/z3", fully_sharded),
    "fsdp2 of a mixture": ("mixtral", "dp 4/z3", fully_sharded),
    "weights kept": (
        "llama", "dp 4/z2", lambda model: fully_sharded(model, reshard_after_forward=False)
    ),
    "hsdp": ("qwen3", "dp 8/z3:4", hybrid),
    "tp": ("llama", "dp 1, tp 2", split(2, 1)),
    "tp x fsdp2": ("llama", "dp 8/z3, tp 2", split(2, 8)),
    "ep x fsdp2": ("mixtral", "dp 4/z3, ep 4", split(1, 4, 4)),
}  # fmt: skip
"""(family, layout, how a script of one's own does it)."""


def run_of(name: str, gpus: int, wrap: Wrap, *, steps_alone: bool) -> Trace:
    """What rank 0 of a script does that trains the family on so many GPUs."""
    family = FAMILIES[name]

    def script() -> None:
        torch.distributed.init_process_group("nccl")
        model = wrap(family.on_meta(family.configuration).to(torch.bfloat16)).train()
        options = {"foreach": False} if steps_alone else {}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
        vocabulary = family.configuration.vocab_size
        for _ in range(2):
            ids, labels = (
                torch.randint(0, vocabulary, (family.batch, family.sequence), device="cuda")
                for _ in range(2)
            )
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    trace = run(script, gpu=f"{gpus}x{GPU}")
    unseen = tuple(replace(each, frame=None) for each in trace.placeholders)
    return replace(trace, placeholders=unseen)  # a plan has no line of a script


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_run_on_virtual_ranks(case: str) -> None:
    """Operator by operator with its stream and its collectives, and block by block."""
    name, words, wrap = CASES[case]
    family, layout = FAMILIES[name], layout_of(words)
    mode = TrainingMode(precision=family.mode.precision, spread=Spread(layout))
    symbols = symbols_of(family.configuration)
    program = exact_training(family.on_meta, symbols, family.asked, mode, chip(GPU))
    written = write(program, {**symbols.sizes, **family.asked}, symbols.layers)
    own = plain(run_of(name, layout.chips, wrap, steps_alone=layout.data == 1))
    assert list(differences(written, own)) == []


@pytest.mark.one_case_in(2)
@pytest.mark.parametrize(("name", "ranks"), [("llama", 4), ("mixtral", 2)])
def test_ranks_are_a_size_of_fsdp2(name: str, ranks: int) -> None:
    """One program serves any number of ranks: recorded at 3, 5 and 7, checked at 8."""
    family, spread = FAMILIES[name], Spread(layout_of("dp 8/z3"))
    mode = TrainingMode(precision=family.mode.precision, spread=spread)
    symbols = symbols_of(family.configuration)
    asked = {**family.asked, RANKS: 8}
    program = recorded_training(family.on_meta, symbols, asked, mode, chip(GPU))
    sizes = {**symbols.sizes, **family.asked, RANKS: ranks}
    written = write(program, sizes, symbols.layers, World(ranks, ranks))
    own = plain(run_of(name, ranks, fully_sharded, steps_alone=False))
    assert list(differences(written, own)) == []
