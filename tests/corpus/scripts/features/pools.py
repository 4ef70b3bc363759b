"""Batches prepared by a pool of threads, a step taken in another."""

from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import torch

model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(x):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


with ThreadPool(2) as loaders, ThreadPoolExecutor(1) as trainer:
    for x in loaders.map(lambda _: torch.randn(16, 64).cuda(), range(2)):
        trainer.submit(step, x).result()
