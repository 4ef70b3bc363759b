"""Trainings that a number decides: a model, its optimizer and the form of its loop."""

from collections.abc import Callable, Iterator
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTHS = (8, 24, 64)
ROWS, LENGTH, IDS = 3, 10, 50
STEPS = 3


class Attention(nn.Module):
    def __init__(self, width: int, *, is_causal: bool) -> None:
        super().__init__()
        self.parts, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.is_causal = is_causal

    def forward(self, x: Tensor) -> Tensor:
        heads = [part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.parts(x).chunk(3, -1)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=self.is_causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Recurrent(nn.Module):
    def __init__(self, width: int, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inner = kind(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)[0]
        return out


class Convolution(nn.Module):
    """Along the sequence."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.inner = nn.Conv1d(width, width, kernel, padding="same")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.transpose(1, 2)).transpose(1, 2)
        return out


class Around(nn.Module):
    """A sum with what is within, perhaps computed again in the backward pass."""

    def __init__(self, inner: nn.Module, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.inner, self.is_checkpointed = inner, is_checkpointed

    def forward(self, x: Tensor) -> Tensor:
        if self.is_checkpointed:
            return x + checkpoint(self.inner, x, use_reentrant=False)
        out: Tensor = x + self.inner(x)
        return out


PARTS: dict[str, Callable[[int, Random], nn.Module]] = {
    "linear": lambda width, random: nn.Linear(width, width, bias=random.random() < 0.5),
    "feed-forward": lambda width, random: nn.Sequential(
        nn.Linear(width, 4 * width), random.choice([nn.GELU, nn.ReLU, nn.SiLU])(),
        nn.Linear(4 * width, width)),
    "attention": lambda width, random: Attention(width, is_causal=random.random() < 0.5),
    "recurrent": lambda width, random: Recurrent(width, random.choice([nn.LSTM, nn.GRU])),
    "convolution": lambda width, random: Convolution(width, random.choice([1, 3])),
    "norm": lambda width, random: random.choice([nn.LayerNorm, nn.RMSNorm])(width),
    "dropout": lambda width, random: nn.Dropout(0.1),
    "activation": lambda width, random: random.choice([nn.Tanh, nn.Sigmoid, nn.Softplus])(),
}  # fmt: skip


def layers(width: int, random: Random) -> Iterator[nn.Module]:
    for _ in range(random.randint(1, 6)):
        inner = PARTS[random.choice(list(PARTS))](width, random)
        if random.random() < 0.6:
            inner = Around(inner, is_checkpointed=random.random() < 0.3)
        if random.random() < 0.15:
            inner.requires_grad_(False)
        yield inner


class Model(nn.Module):
    """Ids to scores; the last product may share its weight with the first table."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        width = random.choice(WIDTHS)
        self.table, self.head = nn.Embedding(IDS, width), nn.Linear(width, IDS, bias=False)
        self.layers = nn.Sequential(*layers(width, random))
        if random.random() < 0.3:
            self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.head(self.layers(self.table(ids)))
        return out


def optimizer_of(model: nn.Module, random: Random) -> torch.optim.Optimizer:
    trained = [each for each in model.parameters() if each.requires_grad]
    how = random.choice([{}, {"foreach": False}, {"foreach": True}])
    kind = random.choice(["adamw", "adam", "sgd", "momentum", "rmsprop", "adagrad"])
    if kind == "adamw":
        fused = random.random() < 0.4
        return torch.optim.AdamW(trained, **({"fused": True} if fused else how))  # type: ignore[arg-type]
    if kind == "momentum":
        return torch.optim.SGD(trained, lr=0.1, momentum=0.9, nesterov=True, **how)  # type: ignore[arg-type]
    plain = {
        "adam": torch.optim.Adam,
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
        "adagrad": torch.optim.Adagrad,
    }
    return plain[kind](trained, lr=0.1, **how)  # type: ignore[no-any-return,operator]


def training(number: int) -> Callable[[], None]:
    """The training of this number, always the same."""

    def train() -> None:
        random = Random(number)
        torch.manual_seed(number)
        model = Model(random).cuda()
        optimizer = optimizer_of(model, random)
        dtype = random.choice([None, None, torch.bfloat16, torch.float16])
        pieces = random.choice([1, 1, 2])
        clips, reads, validates = (random.random() < 0.3 for _ in range(3))
        scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
        sets_to_none = random.random() < 0.7
        best = float("inf")

        def loss_of(ids: Tensor) -> Tensor:
            with torch.autocast("cuda", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=sets_to_none)
            for _ in range(pieces):
                loss = loss_of(torch.randint(0, IDS, (ROWS, LENGTH), device="cuda")) / pieces
                scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if validates:
                with torch.no_grad():
                    loss = loss_of(torch.randint(0, IDS, (ROWS, LENGTH), device="cuda"))
            if reads and loss.item() < best:
                best = loss.item()

    return train
