"""The smallest training there is, on "cuda"; imported by the scripts beside it."""

from collections.abc import Iterator

import torch


def steps(count: int, device: str = "cuda") -> Iterator[int]:
    """Take a step, yield its number, and so on."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(count):
        model(torch.ones(4, 8, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield number


def take(count: int) -> None:
    for _ in steps(count):
        pass
