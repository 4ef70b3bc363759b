"""Training in a thread of its own class, and in a Timer."""

import threading

import torch

model = torch.nn.Linear(64, 32).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


class Trainer(threading.Thread):
    def run(self):
        train()


for thread in (Trainer(), threading.Timer(0, train)):
    thread.start()
    thread.join()
