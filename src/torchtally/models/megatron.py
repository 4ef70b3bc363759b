"""Training steps of Megatron-Core's GPT, recorded as a program.

The model, its optimizer and what they call are the library's own, its layers Transformer Engine's.
Products add gradients up in float32, and the optimizer keeps master weights in float32. Recorded is
a rank of tensor and sequence parallelism, without replicas.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed
from torch import nn

from torchtally.chips import Chip, Cluster
from torchtally.models.config_symbols import FFN, GROUP, HEAD_DIM, KV_HEADS, VOCABULARY, WIDTH
from torchtally.models.gpt_symbols import GptSymbols
from torchtally.models.recorded import STEPS, recorded_training, traced
from torchtally.programs import RunProgram
from torchtally.programs.sizes import RANKS
from torchtally.programs.step import BATCH, SEQUENCE

MODULES = (
    *("parallel_state", "models.gpt", "models.gpt.gpt_layer_specs", "tensor_parallel.random"),
    "transformer.transformer_config",
)
"""Of megatron.core: what a model is built with."""


def recorded_gpt(
    symbols: GptSymbols, asked: Mapping[str, int], mode: "MegatronMode", chip: Chip
) -> RunProgram:
    """The program of two training steps, for a batch and a rank's tokens of each sequence, and
    ranks where there are several.

    The library is imported in a run of its own before: modules run operators on the host. Nothing
    is left of what was compiled at other sizes, which would change what is compiled now.
    """
    torch.compiler.reset()
    whole = {**symbols.sizes, **asked}
    traced(lambda: mode.run(gpt(symbols.at(whole, 1)), whole), symbols.name, mode.gpus(chip))
    return recorded_training(gpt, symbols, asked, mode, chip)


def releases() -> str:
    """Releases of what is recorded: "torch 2.13.0, megatron-core 0.16.1"."""
    names = ("torch", "megatron-core")
    return ", ".join(f"{name} {version(name).partition('+')[0]}" for name in names)


def gpt(symbols: GptSymbols) -> nn.Module:
    """Megatron-Core's GPT on the GPU of this rank, its process groups made anew."""
    core = {name: import_module(f"megatron.core.{name}") for name in MODULES}
    layers = core["models.gpt.gpt_layer_specs"].get_gpt_layer_with_transformer_engine_spec
    parallel_state = core["parallel_state"]
    sizes, options = symbols.sizes, symbols.options
    ranks = sizes.get(RANKS, 1)
    torch.distributed.init_process_group(
        "nccl", init_method="tcp://localhost:29500", rank=0, world_size=ranks
    )
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
    core["tensor_parallel.random"].model_parallel_cuda_manual_seed(1)
    config = core["transformer.transformer_config"].TransformerConfig(
        num_layers=symbols.layers,
        hidden_size=sizes[WIDTH],
        ffn_hidden_size=sizes[FFN],
        num_attention_heads=sizes[KV_HEADS] * sizes[GROUP],
        num_query_groups=sizes[KV_HEADS],
        kv_channels=sizes[HEAD_DIM],
        add_qkv_bias=options["has_bias"],
        qk_layernorm=options["has_head_norms"],
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        apply_rope_fusion=True,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        gradient_accumulation_fusion=True,
        tensor_model_parallel_size=ranks,
        sequence_parallel=ranks > 1,
        perform_initialization=False,
    )
    model: nn.Module = core["models.gpt"].GPTModel(
        config,
        layers(qk_layernorm=options["has_head_norms"]),
        sizes[VOCABULARY],
        sizes[SEQUENCE],
        position_embedding_type="rope",
        share_embeddings_and_output_weights=options["is_tied"],
    )
    return model


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronMode:
    """Two training steps by Megatron-Core's own optimizer."""

    batch: int = 1
    ranks: int = 1
    gpus_per_node: int | None = None
    is_compiled: bool = False

    def gpus(self, chip: Chip) -> Cluster:
        """The GPUs that train."""
        return Cluster(chip, self.ranks, self.gpus_per_node)

    def among(self, ranks: int) -> "MegatronMode":
        """The same over so many GPUs."""
        return replace(self, ranks=ranks)

    def run(self, model: nn.Module, sizes: Mapping[str, int]) -> None:
        """Train for two steps, on tokens that are in the vocabulary of the first rank."""
        gpt: Any = model
        weights = list(gpt.parameters())
        for weight in weights:
            weight.main_grad = torch.zeros_like(weight, dtype=torch.float32)
            weight.grad_added_to_main_grad = False
            weight.register_post_accumulate_grad_hook(add_up)
        optimizer = optimizer_of(weights)
        shape = sizes[BATCH], sizes[SEQUENCE] * self.ranks
        positions = torch.arange(shape[1], device="cuda").expand(shape)
        for _ in range(STEPS):
            tokens, labels = (
                torch.randint(sizes[VOCABULARY], shape, device="cuda") for _ in range(2)
            )
            for weight in weights:
                weight.main_grad.zero_()
            gpt(tokens, positions, None, labels=labels).float().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def optimizer_of(weights: list[Any]) -> Any:
    """Megatron-Core's for weights in bfloat16: clipped by the norm of all gradients, without decay
    of vectors.
    """
    core, parallel_state = map(
        import_module, ("megatron.core.optimizer", "megatron.core.parallel_state")
    )
    groups = [
        {"params": [weight for weight in weights if (weight.dim() == 1) is is_vector], **decay}
        for is_vector, decay in ((False, {}), (True, {"weight_decay": 0.0}))
    ]
    adam = core.Adam(groups, lr=1e-4, weight_decay=0.01)
    config = core.OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True)
    optimizer = core.Float16OptimizerWithFloat16Params(adam, config, None, None)
    optimizer.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
    optimizer.tp_group = parallel_state.get_tensor_model_parallel_group()
    return optimizer


def add_up(weight: Any) -> None:
    """Move a gradient to the weight's float32 one, where no product has added it there, as
    Megatron-Core's replicas do in the backward pass.
    """
    if not weight.grad_added_to_main_grad:
        weight.main_grad.add_(weight.grad)
    weight.grad = None
