"""A training that every fix of the catalogue has something to do in, on a CPU or a GPU."""

SOURCE = '''\
"""A small transformer, trained."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, width, layers=4, vocabulary=64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(width, rows, steps=4):
    torch.manual_seed(0)
    model = Model(width).to(DEVICE)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-2,
    )
    total, losses = 0, []
    for _ in range(steps):
        tokens = torch.randint(64, (rows,), device=DEVICE)
        logits = model(tokens)
        loss = F.cross_entropy(logits, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        total += loss
        losses.append(loss)
    print(float(total), len(losses))
    return model


if __name__ == "__main__":
    train(int(sys.argv[1]), int(sys.argv[2]))
'''
