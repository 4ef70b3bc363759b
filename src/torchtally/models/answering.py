"""Answers of a class of transformers, as programs record them: a prompt, then tokens one by one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchtally.chips import Chip, Cluster
from torchtally.models.spread import on_gpu
from torchtally.programs.step import BATCH, SEQUENCE

WEIGHT_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Formats of weights that need no library, by the names of `--weights`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerMode:
    """Prompts that are answered together by the class's own `generate`, greedily."""

    weight_dtype: torch.dtype
    batch: int
    tokens: int
    """Of each answer; the first comes with the prompt's pass."""
    is_compiled: bool = False

    def gpus(self, chip: Chip) -> Cluster:
        """The one that answers."""
        return Cluster(chip)

    def run(self, model: nn.Module, sizes: Mapping[str, int]) -> None:
        """Answer random prompts, which have no token to leave out: `generate` looks for them where
        it is given no mask.
        """
        generator: Any = on_gpu(model.to(self.weight_dtype)).eval()
        shape = sizes[BATCH], sizes[SEQUENCE]
        ids = torch.randint(0, generator.config.vocab_size, shape, device="cuda")
        mask = torch.ones_like(ids)
        generator.generate(ids, attention_mask=mask, max_new_tokens=self.tokens, do_sample=False)
