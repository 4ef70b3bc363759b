"""Trainings of models of equal blocks, in bfloat16: a GPT with dropout, a Llama without."""

_TRAIN = """\


class Model(nn.Module):
    def __init__(self, layers, width, vocabulary=1024):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(device="cuda", layers=4, width=512, rows=8, context=512, steps=2):
    torch.manual_seed(0)
    model = Model(layers, width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        tokens = torch.randint(1024, (rows, context), device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    train()
"""
_IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
GPT = (
    _IMPORTS
    + """\
class Block(nn.Module):
    def __init__(self, width, dropout=0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        rows, context, width = x.shape
        parts = self.qkv(self.norm1(x)).split(width, -1)
        q, k, v = (part.view(rows, context, -1, 64).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.proj(y.transpose(1, 2).reshape(rows, context, width)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
"""
    + _TRAIN
)
LLAMA = (
    _IMPORTS
    + """\
def turned(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(width, 256, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        rows, context, width = x.shape
        h = self.norm1(x)
        q = self.q(h).view(rows, context, -1, 64).transpose(1, 2)
        k, v = self.kv(h).view(rows, context, 2, -1, 64).permute(2, 0, 3, 1, 4)
        angles = torch.arange(context, device=x.device)[:, None] / 100.0
        cos, sin = angles.cos().to(q.dtype), angles.sin().to(q.dtype)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, context, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)).mul_(self.up(h)))
"""
    + _TRAIN
)
