"""Loops that unknown values end, and some that end by themselves. Not a test: `checking.py`."""

import torch


class Stopper:
    """As scripts write it: the loop asks whether to stop."""

    def __init__(self) -> None:
        self.best, self.waited, self.stop = 1e9, 0, False

    def __call__(self, value: float) -> None:
        self.waited = 0 if value < self.best else self.waited + 1
        self.best = min(self.best, value)
        self.stop = self.waited >= 2


def unknown() -> torch.Tensor:
    return torch.randn(4096, device="cuda").abs().max()


def breaks() -> None:
    for _ in range(9):
        if unknown().item() < 2:  # left
            break


def breaks_in_one_line() -> None:
    for _ in range(9):
        if unknown().item() < 2: break  # fmt: skip # noqa: E701 # left
    unknown()


def waits() -> None:
    best, waited = 1e9, 0
    for _ in range(9):
        value = unknown().item()
        if value < best:
            best, waited = value, 0
        else:
            waited += 1
        if waited >= 2:  # left
            break


def asks_a_stopper() -> None:
    stopper = Stopper()
    for _ in range(9):
        stopper(unknown().item())
        if stopper.stop:  # left
            break


def waits_for_balanced_choices() -> None:
    best, waited = 0.0, 0
    labels = torch.zeros(64, dtype=torch.int64, device="cuda")
    for _ in range(9):
        scores = torch.randn(64, 64, device="cuda")
        accuracy = (scores.argmax(-1) == labels).float().mean().item()
        waited = 0 if accuracy > best else waited + 1
        best = max(best, accuracy)
        if waited >= 2:  # left
            break


def returns() -> None:
    for _ in range(9):
        if unknown() < 2:
            pass
        if unknown().item() < 2:  # left
            return


def converges() -> None:
    while unknown() > 1e-3:  # left
        pass


def goes_on() -> None:
    best = 0.0
    for number in range(9):
        value = unknown().item()
        if value > 1e4:
            break
        if value < best:
            best = value
        print(value)
        if number == 3:
            break
    for _ in range(3):
        if torch.isnan(unknown()):
            raise ValueError
    for _ in range(3):
        right = (torch.randn(4096, device="cuda") > 0) == (torch.randn(4096, device="cuda") > 0)
        if right.float().mean().item() > 0.99 or not (~right).sum():
            break
    if unknown().item() > 3:
        return
