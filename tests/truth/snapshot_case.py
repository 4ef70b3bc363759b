"""A training whose allocations PyTorch's CUDA build records: run by `tests/truth/snapshots.py`.

Prints what torch.cuda says of its memory, and writes the snapshot to the file named.
"""

import json
import sys

import torch
from torch import nn


class Block(nn.Module):
    """An MLP with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main(path: str) -> None:
    """Two steps of different lengths, so that blocks are split and reused."""
    torch.cuda.memory._record_memory_history()
    model = nn.Sequential(Block(256), Block(256), nn.Linear(256, 5003)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in (24, 40):
        inputs = torch.zeros(batch, 128, 256, device="cuda")
        labels = torch.zeros(batch * 128, dtype=torch.long, device="cuda")
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    memory = torch.cuda
    said = {
        "peak_allocated_bytes": memory.max_memory_allocated(),
        "peak_reserved_bytes": memory.max_memory_reserved(),
        "allocated_bytes": memory.memory_allocated(),
        "reserved_bytes": memory.memory_reserved(),
    }
    torch.cuda.memory._dump_snapshot(path)
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
