"""The models that are measured, as configurations a script can spell out."""

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Model:
    """A transformers model by its classes' names, and the batch it trains on."""

    name: str
    kind: str
    config: str
    sizes: dict[str, int]
    layers_key: str
    batch: int
    sequence: int
    checkpoints: bool = False
    is_bfloat16: bool = True

    @property
    def layers(self) -> int:
        return self.sizes[self.layers_key]

    def with_layers(self, layers: int | None) -> "Model":
        if layers is None or layers == self.layers:
            return self
        sizes = {**self.sizes, self.layers_key: layers}
        return replace(self, name=f"{self.name}, {layers} layers", sizes=sizes)

    def resized(self, **sizes: int) -> "Model":
        """The same architecture with these sizes in place of its own."""
        named = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return replace(self, name=f"{self.kind}({named})", sizes={**self.sizes, **sizes})

    def build(self) -> Any:
        """On whatever device factories put tensors on now."""
        import torch
        import transformers

        config = getattr(transformers, self.config)(**self.sizes)
        model = getattr(transformers, self.kind)(config)
        if self.checkpoints:
            model.gradient_checkpointing_enable()
        return model.to(torch.bfloat16) if self.is_bfloat16 else model

    def script(self) -> str:
        """A training script, as a person would write it."""
        config = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return SCRIPT.format(
            kind=self.kind, config_class=self.config, config=config,
            dtype=".to(torch.bfloat16)" if self.is_bfloat16 else "",
            checkpoints="model.gradient_checkpointing_enable()\n" if self.checkpoints else "",
            batch=self.batch, sequence=self.sequence,
        )  # fmt: skip


SCRIPT = """\
import torch
from transformers import {config_class}, {kind}

model = {kind}({config_class}({config})){dtype}.to("cuda")
{checkpoints}optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(10):
    ids = torch.randint(0, 1000, ({batch}, {sequence}), device="cuda")
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def llama(name: str, sequence: int, **sizes: int) -> Model:
    return Model(name, "LlamaForCausalLM", "LlamaConfig", sizes, "num_hidden_layers", 1, sequence)


LLAMA_70B = llama(
    "Llama-3-70B, 1 x 4096", 4096, vocab_size=128256, hidden_size=8192, intermediate_size=28672,
    num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
)  # fmt: skip

LLAMA_8B_CHECKPOINTED = replace(
    llama(
        "Llama-3-8B, 1 x 8192, checkpointed", 8192, vocab_size=128256, hidden_size=4096,
        intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8,
    ),
    checkpoints=True,
)  # fmt: skip

GPT2_124M = Model(
    "GPT-2 124M, 4 x 1024", "GPT2LMHeadModel", "GPT2Config",
    {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}, "n_layer", 4, 1024,
    is_bfloat16=False,
)  # fmt: skip


def training_step(model: Any, ids: Any, optimizer: Any) -> None:
    """One step, the same for everyone who measures it.

    The empty cache tells transformers that the batch is not packed sequences; it would look into
    the position ids otherwise, which meta tensors do not have.
    """
    from transformers import DynamicCache

    model(input_ids=ids, labels=ids, past_key_values=DynamicCache()).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
