"""A small training script that touches what most do: the stand-in has to carry it through."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual, twice."""
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).transpose(1, 3)
        q, k, v = parts.unbind(2)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class Model(nn.Module):
    """A small GPT; every second block recomputes."""

    def __init__(self, vocabulary: int = 5000, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device="cuda"))
        for index, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if index % 2 else block(x)
        return self.head(self.norm(x))


def train(dtype: torch.dtype, **how: bool) -> None:
    """Three steps, and what they held."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **how)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
    for _ in range(3):
        tokens = torch.randint(5000, (8, 256)).pin_memory().cuda(non_blocking=True)
        with torch.autocast("cuda", dtype):
            logits = model(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    print(
        f"{dtype} {how}: loss {loss.item()}, allocated {torch.cuda.max_memory_allocated():,},"
        f" reserved {torch.cuda.max_memory_reserved():,}"
    )


if __name__ == "__main__":
    print(torch.cuda.get_device_properties(0))
    train(torch.bfloat16, fused=True)
    train(torch.bfloat16, foreach=True)
    train(torch.float16, foreach=True)
    train(torch.float32, foreach=False)
