"""Models made of torch's own modules: a residual conv net, an LSTM, `nn.Transformer`, experts.

B: batch.  S: sequence.  T = B*S tokens.  d: width.  f: feed-forward width.  V: vocabulary.
H: heads.  E: experts, k of them per token.  C: channels.  P: pixels of an image.
"""

from collections import Counter
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, silu

from tests.real.training import Training, check_training, train
from torchtally.memory import Category
from torchtally.trace import Phase
from torchtally.work import Kind

pytestmark = pytest.mark.one_case_in(2)

B, S, d, f, V, H, E, k = 2, 16, 64, 128, 100, 4, 8, 2
T = B * S


def ids() -> Tensor:
    return torch.randint(0, V, (B, S), device="cuda")


# A residual conv net --------------------------------------------------------------------------


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is carried, projected where shapes differ."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        self.layers = nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 32, 2))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.stem(x)))


def convolution(pixels: int, channels: int, width: int, kernel: int) -> int:
    """2 * B * P * C_out * C_in * kernel**2, P being the pixels that come out."""
    return 2 * B * pixels * width * channels * kernel**2


STEM = convolution(32 * 32, 3, 16, 7)
LATER = (
    2 * convolution(16 * 16, 16, 16, 3)
    + convolution(8 * 8, 16, 32, 3)
    + convolution(8 * 8, 32, 32, 3)
    + convolution(8 * 8, 16, 32, 1)
)


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [
        (torch.contiguous_format, None),
        (torch.channels_last, torch.bfloat16),
        (torch.channels_last, torch.float16),
    ],
    ids=str,
)
def test_a_residual_conv_net(layout: torch.memory_format, dtype: torch.dtype | None) -> None:
    def loss(model: nn.Module) -> Tensor:
        images = torch.randn(B, 3, 64, 64, device="cuda").to(memory_format=layout)
        return cross_entropy(model(images), torch.randint(0, 10, (B,), device="cuda"))

    training = train(lambda: ResNet().to(memory_format=layout), loss, autocast=dtype)
    check_training(training)
    assert training.phases(Kind.CONVOLUTION) == (STEM + LATER, STEM + 2 * LATER, 0)
    head = 2 * B * 32 * 10
    assert training.phases(Kind.PRODUCT) == (head, 2 * head, 0)
    norms = 6
    # running mean and variance, and the number of batches: at most 32 channels, 512 bytes each.
    assert training.bytes_at_peak(Category.BUFFERS) == 3 * 512 * norms
    names = Counter(entry.call.name for entry in training.ledger.reported)
    # cuDNN's for float32 and float16; bfloat16 input goes to ATen's own kernel.
    batch_norm = "aten.native_batch_norm" if dtype is torch.bfloat16 else "aten.cudnn_batch_norm"
    assert names[batch_norm] == names[f"{batch_norm}_backward"] == norms
    layouts = {
        entry.call.outputs[0].stride[1] == 1
        for entry in training.ledger.reported
        if entry.call.name == "aten.convolution" and entry.op.phase is Phase.FORWARD
    }
    assert layouts == {layout is torch.channels_last}


# Recurrent ------------------------------------------------------------------------------------


class LanguageModel(nn.Module):
    """Two layers of LSTM, all of it one cuDNN call."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, d)
        self.lstm = nn.LSTM(d, f, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(f, V)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.lstm(self.embed(tokens))
        return self.head(out)


def next_token_loss(model: nn.Module) -> Tensor:
    tokens = ids()
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def test_an_lstm_language_model() -> None:
    training = train(LanguageModel, next_token_loss, autocast=None)
    check_training(training)
    tokens = B * (S - 1)
    gates = 2 * tokens * 4 * f * (d + f) + 2 * tokens * 4 * f * (f + f)
    assert training.phases(Kind.RECURRENT) == (gates, 2 * gates, 0)
    head = 2 * tokens * f * V
    assert training.phases(Kind.PRODUCT) == (head, 2 * head, 0)


# Attention ------------------------------------------------------------------------------------


class Translator(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(V, d), nn.Embedding(V, d)
        self.transformer = nn.Transformer(
            d, H, num_encoder_layers=2, num_decoder_layers=2, dim_feedforward=f,
            dropout=dropout, batch_first=True,
        )  # fmt: skip
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(S, device=tokens.device)
        out = self.transformer(
            self.source(tokens), self.target(tokens), tgt_mask=mask, tgt_is_causal=True
        )
        return self.head(out)


def reconstruction_loss(model: nn.Module) -> Tensor:
    tokens = ids()
    return cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


LAYER_PRODUCTS = 2 * T * (4 * d * d + 2 * d * f)
CROSS_PRODUCTS = 2 * T * 4 * d * d
TRANSLATOR_PRODUCTS = 2 * LAYER_PRODUCTS + 2 * (LAYER_PRODUCTS + CROSS_PRODUCTS) + 2 * T * d * V
SCORES = 4 * B * S * S * d
"""Queries by keys and weights by values, all heads."""


@cache
def translator(dropout: float, dtype: torch.dtype | None) -> Training:
    """Trained once, when the first test needs it."""
    return train(lambda: Translator(dropout), reconstruction_loss, autocast=dtype)


@pytest.mark.thorough
@pytest.mark.parametrize(("dropout", "dtype"), [(0.0, None), (0.1, torch.bfloat16)], ids=str)
def test_an_encoder_and_a_decoder(dropout: float, dtype: torch.dtype | None) -> None:
    training = translator(dropout, dtype)
    check_training(training)
    products = TRANSLATOR_PRODUCTS
    assert training.phases(Kind.PRODUCT) == (products, 2 * products, 0)
    attention = 6 * SCORES
    assert training.phases(Kind.ATTENTION) == (attention, 5 * attention // 2, 0)


@pytest.mark.thorough
def test_evaluating_an_encoder_and_a_decoder_between_steps() -> None:
    """A forward pass more, with nothing saved from it."""

    def loss(model: nn.Module) -> Tensor:
        model.eval()
        with torch.no_grad():
            reconstruction_loss(model)
        return reconstruction_loss(model.train())

    training = train(lambda: Translator(0.1), loss)
    check_training(training)
    products, attention = TRANSLATOR_PRODUCTS, 6 * SCORES
    assert training.phases(Kind.PRODUCT) == (2 * products, 2 * products, 0)
    assert training.phases(Kind.ATTENTION) == (2 * attention, 5 * attention // 2, 0)
    once = translator(0.1, torch.bfloat16)
    assert training.ledger.total.bytes_saved == once.ledger.total.bytes_saved


class Attending(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.embed, self.need_weights = nn.Embedding(V, d), need_weights
        self.attention = nn.MultiheadAttention(d, H, batch_first=True)
        self.head = nn.Linear(d, V, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(self.attention(x, x, x, need_weights=self.need_weights)[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention(need_weights: bool) -> None:
    """Where the weights are wanted the scores are written out, by plain products."""
    training = train(lambda: Attending(need_weights), reconstruction_loss, autocast=None)
    check_training(training)
    products = 2 * T * 4 * d * d + 2 * T * d * V
    plain, fused = (SCORES, 0) if need_weights else (0, SCORES)
    written_out = products + plain
    assert training.phases(Kind.PRODUCT) == (written_out, 2 * written_out, 0)
    assert training.phases(Kind.ATTENTION) == (fused, 5 * fused // 2, 0)


# Experts --------------------------------------------------------------------------------------


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """A loop over the experts, each given the tokens that chose it: a shape made of values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, d), nn.Linear(d, V, bias=False)
        self.router = nn.Linear(d, E, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(E))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).flatten(0, 1)
        weights, chosen = self.router(x).softmax(-1).topk(k)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == number)
            out = out.index_add(0, rows, expert(x[rows]) * weights[rows, place, None])
        return self.head(out).view(*tokens.shape, V)


def test_every_expert_gets_its_share_of_the_tokens() -> None:
    training = train(Experts, reconstruction_loss, autocast=None)
    check_training(training)
    assert training.placeholders == {("aten.nonzero", "assumed: balanced routing")}
    share = T * k // E
    products = 2 * T * d * E + E * (2 * share * 3 * d * f) + 2 * T * d * V
    assert training.phases(Kind.PRODUCT) == (products, 2 * products, 0)
    rows = Counter(
        entry.call.inputs[0].shape[0]
        for entry in training.ledger.reported
        if entry.site.module.endswith(".up")
        and entry.op.phase is Phase.FORWARD
        and entry.kind is Kind.PRODUCT
    )
    assert rows == {share: E}
