"""Training loops of others, as a user writes them, with the lines that make them durable.

`nano` is written as nanoGPT's train.py: a batch drawn ahead by torch.randint, gradient
accumulation, a loss scaler, clipping, a learning rate set by hand, an evaluation that draws, too,
and dropout.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchtally

VOCABULARY, BLOCK, BATCH, WIDTH = 65, 16, 4, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.2)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        )
        dropout = 0.2 if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def nano(
    folder: Path,
    max_iters: int,
    *,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
    **changes: Any,
) -> dict[str, Tensor]:
    """nanoGPT's loop; the end of its weights and its optimizer's state."""
    torch.manual_seed(1337)
    train_data = np.random.default_rng(0).integers(0, VOCABULARY, 5000).astype(np.uint16)

    def get_batch() -> tuple[Tensor, Tensor]:
        ix = torch.randint(len(train_data) - BLOCK, (BATCH,))
        x = torch.stack([torch.from_numpy(train_data[i : i + BLOCK].astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(train_data[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in ix])  # fmt: skip # noqa: E501
        return x, y

    def get_lr(keys: int) -> float:
        return 1e-3 * (keys + 1) / 4 if keys < 4 else 1e-4 + 9e-4 * 0.5 * (1 + math.cos(keys / 20))

    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=3)

    options: dict[str, Any] = {"every": 1} | changes
    with torchtally.durable(folder, model=model, optimizer=optimizer, scaler=scaler, **options) as run:  # fmt: skip # noqa: E501
        X, Y = run.get("batch") or get_batch()
        for iter_num in run.steps(max_iters):
            lr = get_lr(iter_num)
            for param_group in optimizer.param_groups:
                param_group["lr"] = lr
            if iter_num % 3 == 0:
                model.eval()
                with torch.no_grad():
                    losses = [model(*get_batch())[1].item() for _ in range(2)]
                run["best_val_loss"] = min(run.get("best_val_loss", 1e9), *losses)
                model.train()
            for _ in range(2):
                _, loss = model(X, Y)
                loss = loss / 2
                X, Y = run["batch"] = get_batch()
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            on_step(iter_num, loss.item())
        kept = {
            "best": torch.tensor(run["best_val_loss"]),
            "scale": torch.tensor(scaler.get_scale()),
        }
    return {**kept, **dict(everything(model, optimizer))}


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    yield from model.state_dict().items()
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            yield f"{name}/{key}", value
