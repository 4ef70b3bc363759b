"""A training spread over GPUs as libraries do it: torch's replicas (DDP) and shards (FSDP2), and
tensor and expert parallelism by the plans that a class of transformers has.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from torchtally.chips import Chip, Cluster
from torchtally.errors import UsageError
from torchtally.plan.flops import Recompute
from torchtally.plan.parallel.layout import Layout, Sharding


@dataclass(frozen=True, slots=True)
class Spread:
    """GPUs that train one model together; the traced one is rank 0."""

    layout: Layout
    gpus_per_node: int | None = None
    computes_in: torch.dtype | None = None
    """Dtype in which shards gather weights, which hold them in float32; None: the weights' own."""

    def among(self, ranks: int) -> "Spread":
        """The same over so many GPUs, in nodes as large as there are GPUs at most."""
        return replace(self, layout=replace(self.layout, data=ranks))

    def cluster(self, chip: Chip) -> Cluster:
        return Cluster(chip, self.layout.chips, self.gpus_per_node)

    def on_gpus(self, model: nn.Module) -> nn.Module:
        """The model, so far on the meta device, on the traced GPU and its peers."""
        if self.layout.chips == 1:
            return on_gpu(model)
        torch.distributed.init_process_group("nccl")
        if self.layout.tensor > 1 or self.layout.expert > 1:
            return self.by_plan(model).to_empty(device="cuda")
        if self.layout.shard is Sharding.NONE:
            return DistributedDataParallel(on_gpu(model))
        options: dict[str, Any] = {"mesh": self.mesh()}
        if self.computes_in is not None:
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=self.computes_in)
        if self.layout.shard is Sharding.ZERO2:
            options["reshard_after_forward"] = False  # left out, all but the root's are freed
        for module in (*layers_of(model), model):
            fully_shard(module, **options)
        return model.to_empty(device="cuda")

    def mesh(self) -> Any:
        """The replicas and the chips that share each."""
        shards = self.layout.shards
        replicas = self.layout.chips // shards
        if replicas == 1:
            return init_device_mesh("cuda", (shards,))
        return init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replica", "shard"))

    def by_plan(self, model: nn.Module) -> nn.Module:
        """The model split by the plans of its class: products, experts, then weights (FSDP2)."""
        distributed = import_module("transformers.distributed")
        config = distributed.DistributedConfig(
            tp_size=self.layout.tensor,
            fsdp_size=self.layout.shards,
            dp_replicate_size=self.layout.data // self.layout.shards,
            ep_size=self.layout.expert,
        )
        _, mesh = import_module("transformers.distributed.utils").initialize_distributed_mesh(
            config
        )
        kind: Any = type(model)
        split: nn.Module = kind.maybe_distribute_model(model, config, mesh)
        return split


def on_gpu(module: nn.Module) -> nn.Module:
    """The module on the GPU, its memory taken in the order of `Module.to`.

    `Module.to_empty` gives a parameter that two modules share memory twice.
    """
    for child in module.children():
        on_gpu(child)
    for parameter in module.parameters(recurse=False):
        if not parameter.is_cuda:
            parameter.data = torch.empty_like(parameter, device="cuda")
    for name, buffer in module.named_buffers(recurse=False):
        if not buffer.is_cuda:
            setattr(module, name, torch.empty_like(buffer, device="cuda"))
    return module


def steps_alone(parameters: Sequence[nn.Parameter]) -> bool:
    """Whether an optimizer has to step each tensor by itself: torch's operators over lists take no
    plain tensors beside sharded ones, as tensor parallelism alone leaves them.
    """
    return len({isinstance(parameter, DTensor) for parameter in parameters}) > 1


ALONE = Spread(Layout())


def check_spread(layout: Layout) -> None:
    """Raises UsageError for a layout that torch alone does not run."""
    others = {"pp": layout.pipeline, "cp": layout.context}
    word = next((word for word, degree in others.items() if degree > 1), None)
    if word is not None:
        raise UsageError(
            f"-o writes out steps of dp, tp and ep, and --layout has {word} {others[word]}.\n"
            f"Leave {word} out, or plan without -o."
        )
    if layout.recompute not in (Recompute.NONE, Recompute.FULL):
        raise UsageError(
            f"-o: a class of transformers checkpoints whole layers, and recomputation is "
            f"{layout.recompute}.\nChoose another: --recompute full, or none."
        )
    spared = [*layout.modules, *([f"offload {layout.offloaded}"] if layout.offloaded else ())]
    if spared:
        raise UsageError(
            f"-o runs a class of transformers, which has no {spared[0]}.\n"
            f"Leave {spared[0]} out of --layout, or plan without -o."
        )
    by_plan = {"tp": layout.tensor, "ep": layout.expert}
    split = ", ".join(f"{word} {degree}" for word, degree in by_plan.items() if degree > 1)
    if split and layout.data > 1 and layout.shard is not Sharding.ZERO3:
        raise UsageError(
            f"-o: a class of transformers with {split} has its replicas as shards, dp N/z3.\n"
            f"Write it so: --layout 'dp {layout.data}/z3, {split}'."
        )
    if layout.shard is Sharding.ZERO1:
        raise UsageError(
            "-o writes out what torch alone runs: replicas (ddp), shards of gradients and states "
            "(z2) and of weights, too (z3), but no z1.\nChoose one of them: --layout 'dp 8/z3'."
        )
    if layout.micro_batches > 1 and layout.chips > 1:
        raise UsageError(
            "-o writes out a step of several GPUs with one micro-batch: --layout '... mb 4x1'."
        )


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a class of transformers: the list that is as long as its configuration says."""
    config: Any = model.config
    layers = config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return [layer for each in lists if len(each) == layers for layer in each]
