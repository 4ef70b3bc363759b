"""Train a small GPT on the source code of Python's standard library, byte by byte.

Plain PyTorch, as one would write it for a real GPU; it knows nothing of torchtally.

    python examples/train_gpt.py --layers 2 --width 128 --context 128 --batch-size 8 --steps 100
    tally run examples/train_gpt.py --batch-size 64 --gpu H100-SXM
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

VOCABULARY = 256  # bytes


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, context, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=-1)
        by_head = (batch, context, self.heads, width // self.heads)
        q, k, v = (part.view(by_head).transpose(1, 2) for part in (q, k, v))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, context, width)
        return self.proj(y)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        hidden = self.up(self.mlp_norm(x))
        hidden = F.gelu(hidden)
        return x + self.dropout(self.down(hidden))


class GPT(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.checkpoint = args.checkpoint
        self.tokens = nn.Embedding(VOCABULARY, args.width)
        self.positions = nn.Embedding(args.context, args.width)
        self.blocks = nn.ModuleList(
            Block(args.width, args.heads, args.dropout) for _ in range(args.layers)
        )
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, VOCABULARY, bias=False)
        self.apply(self.initialise)

    def initialise(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def corpus() -> Tensor:
    """Every top-level module of Python's standard library, one after another, as bytes."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = b"\n".join(file.read_bytes() for file in files)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batch(text: Tensor, args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Random windows of the text, and the same windows one byte later."""
    starts = torch.randint(len(text) - args.context, (args.batch_size, 1))
    windows = text[starts + torch.arange(args.context + 1)].long()
    if args.device == "cuda":
        windows = windows.pin_memory()
    windows = windows.to(args.device, non_blocking=True)
    return windows[:, :-1], windows[:, 1:]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--context", type=int, default=1024, help="bytes that attention sees")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=6e-4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--checkpoint", action="store_true", help="recompute blocks in backward")
    parser.add_argument("--log-every", type=int, default=10, help="steps between printed losses")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    text = corpus()
    model = GPT(args).to(args.device)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=args.learning_rate,
        betas=(0.9, 0.95),
        fused=args.device == "cuda",
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    started = time.perf_counter()
    for step in range(1, args.steps + 1):
        tokens, targets = batch(text, args)
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % args.log_every == 0:
            elapsed = time.perf_counter() - started
            print(f"step {step}: loss {loss.item():.3f}, {elapsed / step:.3f} s a step")


if __name__ == "__main__":
    main()
