"""A script that reads placeholders; beside each line what the value read there is for."""

import math

import torch


def script() -> None:
    x = torch.randn(4096, device="cuda")
    loss = x.mean()
    if loss > 3:  # branch
        raise AssertionError
    while loss > 3:  # branch
        raise AssertionError
    while not loss < 3:  # branch
        break
    lossf = loss.item()  # branch
    if math.isnan(lossf):
        raise AssertionError
    shown = loss.item()  # print
    print(f"{shown:.2f}")
    returned = loss.item()  # number
    history = [returned]
    print(f"loss {loss.item():.3f}", len(history))  # print
    print(f"loss {loss:.3f}")  # print
    print("loss %.3f" % loss)  # noqa: UP031 # print
    print("loss", float(loss), sep=" ")  # print
    print(round(loss.item() * 100, 2))  # print
    print("{:.2f}".format(loss.item()))  # noqa: UP032 # print
    picked = 1 if loss.item() > 2 else 0  # branch
    for _ in range(int(x.sum())):  # branch
        picked += 1
    total = 0.0
    total += loss.item()  # print
    print(total / 3)
    kept = [value for value in (1, 2) if value < loss.item()]  # branch
    history.extend(kept)
    history.append(loss.item())  # number
    assert not (loss > 3 and picked)  # branch
    if (walrus := loss.item()) > 3:  # branch
        print(walrus)
    largest = max(loss.item(), 0.5)  # branch
    best = largest
    if best < 0:
        raise AssertionError
    norm = float(torch.linalg.vector_norm(x))  # number
    scale = 1 / norm
    x.mul_(scale)
