"""torch.multiprocessing.spawn of one process."""

import torch
import torch.multiprocessing as mp


def train(rank):
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(64, 32).to(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(16, 64, device=rank)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    mp.spawn(train, nprocs=torch.cuda.device_count())
