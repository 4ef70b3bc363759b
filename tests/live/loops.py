"""Small models that are trained for real, and predictions of them."""

from dataclasses import replace
from typing import Any

import torch

from torchtally.live.prediction import PredictedStep

VOCABULARY, TOKENS, BATCH = 31, 8, 2
GPU = "H100-SXM"
CPU_STEP = PredictedStep(
    file="a test", chip="CPU", step_s=1e9, mfu=0.5, peak_bytes=2**20, time_error=0.1
)
"""Of this machine's device, and so slow that every step deviates from it."""


def predicted(**changes: Any) -> PredictedStep:
    return replace(CPU_STEP, **changes)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=TOKENS, n_embd=16, n_layer=1, n_head=2, bos_token_id=1,
        eos_token_id=1,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def rows(count: int) -> list[dict[str, Any]]:
    drawn = [torch.randint(VOCABULARY, (TOKENS,)) for _ in range(count)]
    return [{"input_ids": row, "labels": row} for row in drawn]
