"""Memory held against a real machine: the same steps run for real on the CPU, to the byte.

torch's profiler reports every allocation and free of the CPU's allocator. The virtual GPU composes
operators as the CPU does (`dispatch="cpu"`). It must have run the same operators in the same order
and made every storage that outlives its operator: of that size, by that operator, gone after that
one. The curve of live bytes over all operators and its peak follow, and are compared as well.
Nothing is rounded and nothing tolerated. What is in neither curve (scratch inside one operator,
Python's numbers) is defined in `cpu_profile.py`.

Two steps each, so the second has the optimizer's state. The script names "cuda" here and "cpu"
there and is otherwise the same; whether optimizers work in lists is said, since its default asks
the device.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module

import pytest
import torch
import transformers as hf
from msgspec import structs
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from tests.real.cpu_profile import (
    FOREVER,
    Program,
    Run,
    Simulation,
    differences,
    is_counted,
    profiled,
    simulated,
)
from tests.traces import ops

pytestmark = pytest.mark.one_case_in(5)

B, S, d, H, V, L = 2, 24, 64, 4, 100, 2

Loss = Callable[[nn.Module, str], Tensor]
Optimizer = Callable[..., torch.optim.Optimizer]

ADAMW = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)
ADAMW_ON_LISTS = partial(ADAMW, foreach=True)


def training(
    make: Callable[[], nn.Module],
    loss: Loss,
    optimizer: Optimizer = ADAMW_ON_LISTS,
    *,
    micro_batches: int = 1,
    clips: bool = False,
) -> Program:
    """Two steps of training; parameters are on the device before."""

    def program(device: str) -> Callable[[], None]:
        torch.manual_seed(0)
        model = make().to(device).train()
        stepper = optimizer(model.parameters())

        def steps() -> None:
            for _ in range(2):
                for _ in range(micro_batches):
                    (loss(model, device) / micro_batches).backward()
                if clips:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
                stepper.step()
                stepper.zero_grad(set_to_none=True)

        return steps

    return program


# Models ---------------------------------------------------------------------------------------


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10)
    )


def deep_linear() -> nn.Module:
    return nn.Sequential(*(nn.Linear(48, 48, bias=False) for _ in range(12)))


def on_vectors(width: int, model: nn.Module, device: str) -> Tensor:
    x = torch.randn(40, width, device=device)
    y = model(x)
    return mse_loss(y, torch.randn(y.shape, device=device))


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(2))
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.gelu, self.dropout = nn.GELU(), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.view(*part.shape[:2], H, d // H).transpose(1, 2)
            for part in self.qkv(self.norms[0](x)).split(d, dim=2)
        )
        p = self.dropout.p if self.training else 0.0
        y = scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.down(self.gelu(self.up(self.norms[1](x)))))


@dataclass(frozen=True)
class Recompute:
    use_reentrant: bool

    def __call__(self, block: nn.Module, x: Tensor) -> Tensor:
        # The random state it would keep is the host's here and the device's there.
        return checkpoint(block, x, use_reentrant=self.use_reentrant, preserve_rng_state=False)  # type: ignore[no-any-return]


class GPT(nn.Module):
    """As the original: learned positions, causal attention, the head is the embedding."""

    def __init__(self, dropout: float = 0.0, recompute: Recompute | None = None) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, d), nn.Embedding(S, d)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(L))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, V, bias=False)
        self.head.weight = self.tokens.weight
        self.recompute = recompute

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.tokens(tokens) + self.positions(positions))
        for block in self.blocks:
            x = self.recompute(block, x) if self.recompute else block(x)
        return self.head(self.norm(x))


def on_text(model: nn.Module, device: str) -> Tensor:
    tokens = torch.randint(0, V, (B, S + 1), device=device)
    logits = model(tokens[:, :-1])
    return cross_entropy(logits.view(-1, V), tokens[:, 1:].reshape(-1))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.SiLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def on_images(model: nn.Module, device: str) -> Tensor:
    images = torch.randn(B, 3, 16, 16, device=device)
    return cross_entropy(model(images), torch.randint(0, 10, (B,), device=device))


class Recurrent(nn.Module):
    """Cell by cell: `nn.LSTM` is one kernel on CUDA, and on the CPU a composition of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, 32), nn.Linear(48, V)
        self.cell = nn.LSTMCell(32, 48)

    def forward(self, tokens: Tensor) -> Tensor:
        state, states = None, []
        for x in self.embed(tokens).unbind(1):
            state = self.cell(x, state)
            states.append(state[0])
        return self.head(torch.stack(states, 1))


TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}


def gpt2() -> nn.Module:
    config = hf.GPT2Config(vocab_size=V, n_positions=S, n_embd=d, n_layer=L, n_head=H, **TOKENS)
    return hf.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    """Grouped queries, rotary positions, norms by the root mean square."""
    config = hf.LlamaConfig(vocab_size=V, hidden_size=d, intermediate_size=2 * d,
                            num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=2,
                            **TOKENS)  # fmt: skip
    return hf.LlamaForCausalLM(config)


def on_labelled_text(model: nn.Module, device: str) -> Tensor:
    tokens = torch.randint(0, V, (B, S), device=device)
    return model(input_ids=tokens, labels=tokens).loss


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)

PROGRAMS: dict[str, Program] = {
    "perceptron, SGD": training(perceptron, partial(on_vectors, 32), SGD),
    "deep linear, SGD": training(deep_linear, partial(on_vectors, 48), SGD),
    "GPT": training(GPT, on_text),
    "GPT, one tensor at a time": training(GPT, on_text, partial(ADAMW, foreach=False)),
    "GPT, fused": training(GPT, on_text, partial(ADAMW, fused=True)),
    "GPT, dropout": training(partial(GPT, 0.1), on_text),
    "GPT, clipping": training(GPT, on_text, clips=True),
    "GPT, accumulation": training(GPT, on_text, micro_batches=3),
    "GPT, recomputed": training(partial(GPT, 0.1, Recompute(False)), on_text),
    "GPT, recomputed, re-entrant": training(partial(GPT, 0.1, Recompute(True)), on_text),
    "conv net": training(ConvNet, on_images),
    "LSTM, cell by cell": training(Recurrent, on_text),
    "GPT-2 of transformers": training(gpt2, on_labelled_text),
    "Llama of transformers": training(llama, on_labelled_text),
}


# Single expressions -----------------------------------------------------------------------------


MODELS = tuple(PROGRAMS)


def expression(function: Callable[[Tensor], Tensor]) -> Program:
    """Forward and backward of one function of a matrix, two times."""

    def program(device: str) -> Callable[[], None]:
        torch.manual_seed(0)
        weight = torch.randn(40, 40).to(device).requires_grad_()

        def steps() -> None:
            for _ in range(2):
                function(weight * 1).sum().backward()
                weight.grad = None

        return steps

    return program


def kept_by_a_hook(x: Tensor) -> Tensor:
    kept: list[object] = []
    one, other = x.relu(), x.sigmoid()
    for tensor in (one, other):
        tensor.grad_fn.register_hook(lambda inputs, outputs: kept.append(inputs))  # type: ignore[union-attr]
    return one + other


class Keeping(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:
        ctx.kept = dy * 2
        return ctx.kept


EXPRESSIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "two gradients meet": lambda x: x.relu() + x.sigmoid(),
    "three gradients meet": lambda x: x.relu() + x.sigmoid() + x.tanh(),
    "one is passed on": lambda x: x.sigmoid() + x,
    "one is passed on twice": lambda x: (x.sigmoid() * 2 + x) + x,
    "a square": lambda x: x * x,
    "one is expanded": lambda x: x.relu().sum() + x.sum(),
    "the first is expanded": lambda x: x.sum() + x.relu().sum(),
    "one is transposed": lambda x: x.relu() + x.t().sigmoid(),
    "one is of a slice": lambda x: x[:20].relu().sum() + x.sigmoid().sum(),
    "both are kept": kept_by_a_hook,
    "a node keeps one": lambda x: Keeping.apply(x) + x.relu(),  # type: ignore[no-untyped-call]
    "a sum inside a formula": lambda x: torch.logcumsumexp(x, 0),
    "a power of itself": lambda x: x.sigmoid() ** x.sigmoid(),
    "silu": nn.functional.silu,
    "mish": nn.functional.mish,
    "mean squares": lambda x: mse_loss(x, torch.zeros_like(x)),
    "sums of squares": lambda x: mse_loss(x, torch.zeros_like(x), reduction="sum"),
    "squares": lambda x: mse_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth distances": lambda x: nn.functional.smooth_l1_loss(x, torch.zeros_like(x)),
    "soft margins": lambda x: nn.functional.soft_margin_loss(x, torch.ones_like(x)),
    "binary cross-entropy": lambda x: nn.functional.binary_cross_entropy(
        x.sigmoid(), torch.ones_like(x)
    ),
}
PROGRAMS |= {name: expression(function) for name, function in EXPRESSIONS.items()}


# Tensors that get another storage -------------------------------------------------------------


def flattened(device: str) -> Callable[[], None]:
    """As FSDP1's flat parameters begin: each weight is a part of one storage, and that a shard."""

    def steps() -> None:
        weights = [torch.full((48, 48), 1.0, device=device) for _ in range(4)]
        flat = torch.cat([weight.view(-1) for weight in weights])
        views = [weight.view(-1) for weight in weights]
        for weight, part in zip(weights, flat.split(48 * 48), strict=True):
            weight.set_(part.view(48, 48))  # type: ignore[call-overload]
        del views
        flat.set_(flat.view(4, -1)[0].clone())  # type: ignore[call-overload]
        for weight in weights:
            weight.relu()
        del weights
        flat.relu()

    return steps


def replaced(device: str) -> Callable[[], None]:
    def steps() -> None:
        one = torch.full((64, 64), 1.0, device=device)
        view = one.view(-1)
        one.data = one.repeat(3, 3)
        one.relu()
        del view
        one.relu()
        one.data = one[:8].clone()
        one.relu()

    return steps


PROGRAMS |= {
    "another storage, while views live": flattened,
    "other data, while views live": replaced,
}


# Held against the real run --------------------------------------------------------------------


@cache
def both(name: str) -> tuple[Simulation, Run]:
    import_module("torch._dynamo")  # the first recomputation would, and errors within keep frames
    simulation = simulated(PROGRAMS[name])
    return simulation, profiled(PROGRAMS[name], simulation.operators)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_storage_lives_as_on_the_cpu(name: str) -> None:
    simulation, run = both(name)
    ours, real = simulation.course, run.course
    assert differences(ours, real) == []
    assert ours == real
    assert ours.curve == real.curve
    assert ours.peak_bytes == real.peak_bytes > 0
    assert not simulation.trace.placeholders


@pytest.mark.parametrize("name", MODELS)
def test_little_is_left_out_of_the_comparison(name: str) -> None:
    """Python's numbers are doubles, and the peak with all scratch is within a tenth of the curve's.

    Storages are by far most of the bytes that were allocated, so the curves are no empty shells.
    """
    simulation, run = both(name)
    assert set(run.numbers) <= {8}
    assert run.course.peak_bytes <= run.peak_bytes <= 1.1 * run.course.peak_bytes
    assert len(run.course.lives) > 40
    on_host = [life for life in simulation.course.lives if life.is_on_host]
    assert all(life.bytes == 4 for life in on_host)  # the optimizers' step counters


# The comparison sees any one storage that is otherwise ------------------------------------------

PERTURBED = "GPT, clipping"


def perturbed(simulation: Simulation, number: int, **change: int | None) -> Simulation:
    storages = [*simulation.trace.storages]
    storages[number] = structs.replace(storages[number], **change)
    return replace(simulation, trace=structs.replace(simulation.trace, storages=tuple(storages)))


def test_one_byte_more_is_seen() -> None:
    simulation, run = both(PERTURBED)
    storages = [
        storage for storage in simulation.trace.storages if storage.born >= simulation.first
    ]
    for storage in storages[::9]:
        other = perturbed(
            simulation, storage.number, requested_bytes=storage.requested_bytes + 1
        ).course
        assert other != run.course
        assert other.curve != run.course.curve


def test_one_operator_longer_is_seen() -> None:
    simulation, run = both(PERTURBED)
    trace_ops, storages = ops(simulation.trace), simulation.trace.storages
    checked = 0
    for storage in storages[::9]:
        if storage.died is None or storage.died < simulation.first:
            continue
        following = (op for op in trace_ops[storage.died :] if is_counted(op))
        if (op := next(following, None)) is None:
            continue
        other = perturbed(simulation, storage.number, died=op.clock + 1).course
        assert other != run.course
        assert other.curve != run.course.curve
        assert len(differences(other, run.course)) == 2
        checked += 1
    assert checked > 25


def test_a_storage_that_never_dies_is_seen() -> None:
    simulation, run = both(PERTURBED)
    dying = [
        storage
        for storage in simulation.trace.storages
        if storage.born >= simulation.first and storage.died
    ]
    other = perturbed(simulation, dying[0].number, died=None).course
    missing, extra = differences(other, run.course)
    assert "only for real" in missing
    assert f"died={FOREVER}" in extra
    assert other.curve != run.course.curve


def test_another_operator_is_seen() -> None:
    simulation, _ = both(PERTURBED)
    operators = simulation.operators
    (at, *_) = (at for at, operator in enumerate(operators) if operator.name == "aten.gelu")
    operators[at] = replace(operators[at], name="aten.silu")
    with pytest.raises(AssertionError, match="never ran for real"):
        profiled(PROGRAMS[PERTURBED], operators)
    del operators[at]
    without = profiled(PROGRAMS[PERTURBED], operators).course
    assert without != simulation.course
