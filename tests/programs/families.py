"""Small classes of transformers, as a script trains them and as programs record them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from torchtally import run
from torchtally.chips import chip
from torchtally.models.config_symbols import symbols_of
from torchtally.models.precision import step_precision
from torchtally.models.recorded import TrainingMode, recorded_training
from torchtally.models.spread import Spread
from torchtally.plan.parallel.layout import Layout
from torchtally.programs import RunProgram, write
from torchtally.trace import Trace

GPU = "H100-SXM"
LAYERS = 6
LLAMA = {
    "vocab_size": 1000, "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 64, "intermediate_size": 1024, "num_hidden_layers": LAYERS, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {
    "vocab_size": 1001, "n_embd": 256, "n_head": 4, "n_layer": LAYERS, "n_positions": 512,
    "bos_token_id": 1, "eos_token_id": 2, "loss_type": "ForCausalLM",
}  # fmt: skip
PHI3 = {key: value for key, value in LLAMA.items() if key != "head_dim"}
GEMMA2 = LLAMA | {"num_hidden_layers": 9, "sliding_window": 96}
"""Windows in every other layer, and a layer left over; of 256 tokens each sees 96."""
GEMMA3 = LLAMA | {"num_hidden_layers": 26, "sliding_window": 96}
"""Windows in five of six layers, and two layers left over."""
OPT = {
    "vocab_size": 1000, "hidden_size": 256, "word_embed_proj_dim": 256, "num_attention_heads": 4,
    "ffn_dim": 512, "num_hidden_layers": LAYERS, "max_position_embeddings": 512,
}  # fmt: skip
BLOOM = {"vocab_size": 1000, "hidden_size": 768, "n_head": 12, "n_layer": LAYERS}
"""Slopes of 12 heads: 8 of them by one row of powers of two, 4 by another."""
FALCON = {
    "vocab_size": 1000, "hidden_size": 320, "num_attention_heads": 5, "bias": False,
    "num_hidden_layers": LAYERS, "max_position_embeddings": 512,
}  # fmt: skip
MPT = {"vocab_size": 1000, "d_model": 256, "n_heads": 4, "n_layers": LAYERS, "max_seq_len": 512}
MIXTRAL = LLAMA | {"num_local_experts": 8, "num_experts_per_tok": 2}


@dataclass(frozen=True, slots=True)
class Family:
    """A class, and how it is trained."""

    kind: str
    config: str
    sizes: dict[str, Any]
    precision: str = "pure-bf16"
    is_checkpointed: bool = False
    has_adapters: bool = False
    has_master: bool = False
    optimizer: str = "AdamW"
    micro_batches: int = 1
    batch: int = 2
    sequence: int = 256

    @property
    def configuration(self) -> Any:
        import transformers

        return getattr(transformers, self.config)(**self.sizes)

    def build(self, configuration: Any) -> nn.Module:
        import transformers

        model: nn.Module = getattr(transformers, self.kind)(configuration)
        return model

    def on_meta(self, configuration: Any) -> nn.Module:
        with torch.device("meta"):
            return self.build(configuration)

    @property
    def adapt(self) -> Callable[[nn.Module], nn.Module] | None:
        return adapted if self.has_adapters else None

    @property
    def mode(self) -> TrainingMode:
        return TrainingMode(
            precision=step_precision(self.precision),
            is_checkpointed=self.is_checkpointed,
            adapt=self.adapt,
            has_master=self.has_master,
            optimizer=self.optimizer,
            spread=Spread(Layout(micro_batches=self.micro_batches)),
        )

    @property
    def asked(self) -> dict[str, int]:
        return {"batch": self.batch, "sequence": self.sequence}


def adapted(model: nn.Module) -> nn.Module:
    import peft

    wrapped: nn.Module = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    )
    return wrapped


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", LLAMA),
    "gpt2": Family("GPT2LMHeadModel", "GPT2Config", GPT2),
    "mixtral": Family("MixtralForCausalLM", "MixtralConfig", MIXTRAL),
    "gemma2-windows": Family("Gemma2ForCausalLM", "Gemma2Config", GEMMA2),
    "gemma3-windows": Family("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA3),
    "mistral-window-filled": Family(
        "MistralForCausalLM", "MistralConfig", LLAMA | {"sliding_window": 256}
    ),
    "opt": Family("OPTForCausalLM", "OPTConfig", OPT),
    "bloom": Family("BloomForCausalLM", "BloomConfig", BLOOM),
    "falcon": Family("FalconForCausalLM", "FalconConfig", FALCON),
    "mpt": Family("MptForCausalLM", "MptConfig", MPT),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", LLAMA),
    "phi3-batch-1": Family("Phi3ForCausalLM", "Phi3Config", PHI3, batch=1),
    "llama-autocast": Family("LlamaForCausalLM", "LlamaConfig", LLAMA, precision="bf16"),
    "llama-checkpointed": Family("LlamaForCausalLM", "LlamaConfig", LLAMA, is_checkpointed=True),
    "llama-master": Family("LlamaForCausalLM", "LlamaConfig", LLAMA, has_master=True),
    "llama-accumulated": Family("LlamaForCausalLM", "LlamaConfig", LLAMA, micro_batches=2),
    "llama-adafactor": Family("LlamaForCausalLM", "LlamaConfig", LLAMA, optimizer="Adafactor"),
    "llama-lora": Family("LlamaForCausalLM", "LlamaConfig", LLAMA, has_adapters=True),
    "gpt2-autocast-checkpointed": Family(
        "GPT2LMHeadModel", "GPT2Config", GPT2, precision="bf16", is_checkpointed=True
    ),
}


@cache
def program_of_family(name: str) -> RunProgram:
    family = FAMILIES[name]
    return recorded_training(
        family.on_meta, symbols_of(family.configuration), family.asked, family.mode, chip(GPU)
    )


def written_out(name: str) -> Trace:
    """The family's own sizes and layers, which no recording had."""
    family = FAMILIES[name]
    symbols = symbols_of(family.configuration)
    return write(program_of_family(name), {**symbols.sizes, **family.asked}, symbols.layers)


def run_of(name: str) -> Trace:
    """What a script does that trains the family: built on the host, moved to the GPU."""
    family = FAMILIES[name]

    def script() -> None:
        torch.manual_seed(0)
        model: Any = family.build(family.configuration)
        if family.precision == "pure-bf16":
            model = model.to(torch.bfloat16)
        if family.is_checkpointed:
            model.activation_checkpointing_enable({"use_reentrant": False})
        if family.adapt is not None:
            model = family.adapt(model)
        model = model.to("cuda").train()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        masters = [each.detach().float() for each in trained] if family.has_master else []
        stepped = masters or trained
        optimizer = getattr(torch.optim, family.optimizer)(stepped, lr=1e-4)
        for _ in range(2):
            for _ in range(family.micro_batches):
                ids, labels = (
                    torch.randint(0, 1000, (family.batch, family.sequence), device="cuda")
                    for _ in range(2)
                )
                with torch.autocast("cuda", torch.bfloat16, enabled=family.precision == "bf16"):
                    loss = model(input_ids=ids, labels=labels, use_cache=False).loss
                if family.micro_batches > 1:
                    loss = loss / family.micro_batches
                loss.backward()
            if family.has_master:
                for master, parameter in zip(masters, trained, strict=True):
                    master.grad = parameter.grad.float()
                    parameter.grad = None
            optimizer.step()
            optimizer.zero_grad()
            if family.has_master:
                with torch.no_grad():
                    for master, parameter in zip(masters, trained, strict=True):
                        parameter.copy_(master)

    return run(script, gpu=GPU)
