"""Whole models: nothing uncounted, and matmul work equal to torch's counter and to closed forms."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.work.calls import Recording
from torchtally.work import Kind


class Block(nn.Module):
    """A pre-norm transformer block of width d: attention written out, 4d wide feed-forward."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, S, d = x.shape
        qkv = self.qkv(self.before_attention(x)).view(B, S, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5
        causal = torch.ones(S, S, dtype=torch.bool).tril()
        weights = scores.masked_fill(~causal, float("-inf")).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(B, S, d)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.before_mlp(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 50, d: int = 16, layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, d)
        self.blocks = nn.Sequential(*(Block(d, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.norm(self.blocks(self.tokens(ids))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.GroupNorm(2, 8),
            nn.SiLU(),
            nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.ConvTranspose2d(8, 4, 2, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(4, 1),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(
            self.layers(images), torch.ones(len(images), 1)
        )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gated = nn.LSTMCell(4, 8), nn.GRUCell(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = self.cell(x)
        return nn.functional.smooth_l1_loss(self.gated(h), c)


def train(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        model(x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


MODELS: list[tuple[Callable[[], nn.Module], torch.Tensor]] = [
    (Transformer, torch.arange(24).reshape(2, 12)),
    (Images, torch.ones(2, 3, 8, 8)),
    (Recurrent, torch.ones(3, 4)),
]


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(("make", "x"), MODELS, ids=["transformer", "images", "recurrent"])
def test_training_leaves_nothing_uncounted(
    make: Callable[[], nn.Module], x: torch.Tensor, foreach: bool
) -> None:
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
    with FlopCounterMode(display=False) as counter, Recording() as recording:
        train(model, x, optimizer)
    assert recording.uncounted == set()
    assert recording.flops(lambda kind: kind.is_matmul) == counter.get_total_flops()


@pytest.mark.parametrize(
    "optimizer", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adamax", "Adadelta"]
)
@pytest.mark.parametrize("foreach", [True, False])
def test_optimizers_leave_nothing_uncounted(optimizer: str, foreach: bool) -> None:
    model = nn.Linear(4, 1)
    step = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, foreach=foreach)
    with Recording() as recording:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
            step.step()
            step.zero_grad()
    assert recording.uncounted == set()


@pytest.mark.parametrize("make", [lambda: nn.LSTM(4, 8, 2), lambda: nn.GRU(4, 8)])
def test_networks_on_the_host_decompose_into_counted_products(
    make: Callable[[], nn.Module],
) -> None:
    model = make()
    with FlopCounterMode(display=False) as counter, Recording() as recording:
        model(torch.ones(5, 3, 4))[0].sum().backward()
    assert recording.uncounted - {"aten.mkldnn_rnn_layer_backward"} == set()
    assert recording.flops(lambda kind: kind is Kind.PRODUCT) == counter.get_total_flops()


@pytest.mark.parametrize(("make", "x"), MODELS, ids=["transformer", "images", "recurrent"])
def test_inference_mode_shows_composites_and_counts_them(
    make: Callable[[], nn.Module], x: torch.Tensor
) -> None:
    model = make().eval()
    with torch.inference_mode(), Recording() as composites:
        model(x)
    with torch.no_grad(), Recording() as decomposed:
        model(x)
    assert composites.uncounted == set()
    names = {one.name for one in composites.calls}
    assert names & {"aten.linear", "aten.conv2d", "aten.lstm_cell"}
    ours, theirs = (each.flops(lambda kind: kind.is_matmul) for each in (composites, decomposed))
    assert ours == theirs > 0


def test_a_training_step_of_a_transformer_in_closed_form() -> None:
    """6 * tokens * matrix weights, and 12 * layers * d * S per token of attention."""
    V, d, layers, B, S = 50, 16, 2, 2, 12
    model = Transformer(V, d, layers)
    with Recording() as recording:
        model(torch.zeros(B, S, dtype=torch.long)).backward()
    weights = layers * 12 * d * d + V * d
    step = 6 * B * S * weights + 12 * layers * d * S * B * S
    assert recording.flops(lambda kind: kind.is_matmul) == step


def test_two_linear_layers_skip_the_gradient_nobody_needs() -> None:
    """Of x @ w1 @ w2: forward 2BDD + 2BDK; backward 4BDK, and 2BDD since x needs none."""
    B, D, K = 8, 16, 4
    x, w1, w2 = torch.ones(B, D), torch.ones(D, D), torch.ones(D, K)
    with Recording() as recording:
        (x @ w1.requires_grad_() @ w2.requires_grad_()).sum().backward()
    products = recording.flops(lambda kind: kind is Kind.PRODUCT)
    assert products == (2 * B * D * D + 2 * B * D * K) + (4 * B * D * K + 2 * B * D * D)
