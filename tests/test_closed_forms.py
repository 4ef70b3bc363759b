"""FLOPs of real sizes equal their closed form to the last digit, and memory its sum by hand.

B: batch.  S: sequence.  T = B*S tokens.  d: width.  f: feed-forward width.  V: vocabulary.
L: layers.  H: heads.  K: key and value heads.  D: head dim.

Forward, an (n, m) weight matrix takes 2*T*n*m FLOPs and attention 4*B*H*S*S*D. Backward, a product
is two products of the same size, the gradients of input and weight; fused attention computes the
scores again beside four products: five where forward has two. Recomputation is forward once more.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from tests.torchs_counter import need_grouped_queries
from torchtally import Ledger, account, run
from torchtally.memory import Category
from torchtally.trace import Phase
from torchtally.trace.storage import allocated_bytes
from torchtally.work import Kind

pytestmark = pytest.mark.one_case_in(4)

Step = Callable[[nn.Module, Tensor], Tensor]


def ledger_of(
    make: Callable[[], nn.Module],
    shape: tuple[int, int],
    vocabulary: int,
    *,
    autocast: torch.dtype | None = torch.bfloat16,
) -> Ledger:
    """Forward and backward of a language model, its loss against its own input."""

    def script() -> None:
        model = make().to("cuda").train()
        ids = torch.randint(0, vocabulary, shape, device="cuda")
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            loss = loss_of(model, ids)
        loss.backward()

    ledger = account(run(script, gpu="H100-SXM"))
    ledger.check()
    assert ledger.coverage.uncounted == ()
    return ledger


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    out = model(input_ids=ids, labels=ids) if hasattr(model, "config") else model(ids)
    return cross_entropy(out.flatten(0, 1), ids.flatten()) if isinstance(out, Tensor) else out.loss


def phases(ledger: Ledger, *kinds: Kind) -> tuple[int, int, int]:
    """FLOPs of these kinds: forward, backward, recompute."""
    sums = dict.fromkeys(Phase, 0)
    for entry in ledger.entries:
        if entry.kind in kinds:
            sums[entry.op.phase] += entry.cost.flops
    return sums[Phase.FORWARD], sums[Phase.BACKWARD], sums[Phase.RECOMPUTE]


def products_and_attention(ledger: Ledger) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    return phases(ledger, Kind.PRODUCT), phases(ledger, Kind.ATTENTION)


# GPT-2 124M ------------------------------------------------------------------------------------


def gpt2(vocabulary: int, dropout: float = 0.1) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=vocabulary, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout
    )
    return GPT2LMHeadModel(config)


@pytest.mark.parametrize("vocabulary", [50257, 50304])
def test_gpt2_124m(vocabulary: int) -> None:
    B, S, L, d, V = 4, 1024, 12, 768, vocabulary
    T = B * S
    layers, head = L * 2 * T * (3 * d * d + d * d + 4 * d * d + 4 * d * d), 2 * T * d * V
    attention = L * 4 * B * S * S * d
    assert products_and_attention(ledger_of(lambda: gpt2(V), (B, S), V)) == (
        (layers + head, 2 * (layers + head), 0),
        (attention, 5 * attention // 2, 0),
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gpt2_124m_with_checkpointing(use_reentrant: bool, dropout: float) -> None:
    """Not re-entering autograd, recomputation stops once the last saved tensor is back.

    Without dropout that is the input of a layer's last product, which is then not run again; with
    dropout it is the mask drawn on that product's result.
    """
    B, S, L, d, V = 4, 1024, 12, 768, 50257
    T = B * S
    layers, head = L * 2 * T * 12 * d * d, 2 * T * d * V
    last_products = 0 if use_reentrant or dropout else L * 2 * T * 4 * d * d
    attention = L * 4 * B * S * S * d

    def make() -> nn.Module:
        model = gpt2(V, dropout)
        model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        return model

    assert products_and_attention(ledger_of(make, (B, S), V)) == (
        (layers + head, 2 * (layers + head), layers - last_products),
        (attention, 5 * attention // 2, attention),
    )


# Llama 3 8B, four of its layers ----------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [None, False, True])
def test_llama_3_8b(use_reentrant: bool | None) -> None:
    B, S, L, d, f, V, H, K, D = 1, 8192, 4, 4096, 14336, 128256, 32, 8, 128
    T = B * S
    layers = L * 2 * T * (d * H * D + d * K * D + d * K * D + H * D * d + d * f + d * f + f * d)
    head = 2 * T * d * V
    attention = L * 4 * B * H * S * S * D
    again = {None: 0, False: layers - L * 2 * T * f * d, True: layers}[use_reentrant]
    attention_again = 0 if use_reentrant is None else attention

    def make() -> nn.Module:
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=V, hidden_size=d, intermediate_size=f, num_hidden_layers=L,
                num_attention_heads=H, num_key_value_heads=K, head_dim=D,
            )
        )  # fmt: skip
        if use_reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        return model.to(torch.bfloat16)

    assert products_and_attention(ledger_of(make, (B, S), V, autocast=None)) == (
        (layers + head, 2 * (layers + head), again),
        (attention, 5 * attention // 2, attention_again),
    )


# A plain model, and torch's own counter --------------------------------------------------------


class Block(nn.Module):
    """Pre-norm, grouped-query attention and a gated feed-forward; no biases."""

    def __init__(self, d: int, heads: int, kv_heads: int, f: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, d // heads
        kv = kv_heads * self.head_dim
        self.before_attention, self.before_mlp = nn.RMSNorm(d), nn.RMSNorm(d)
        self.q, self.k, self.v = (nn.Linear(d, n, bias=False) for n in (d, kv, kv))
        self.out = nn.Linear(d, d, bias=False)
        self.gate, self.up = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before_attention(x)
        q, k, v = (
            layer(y).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y = self.before_mlp(x)
        return x + self.down(silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(
        self, *, layers: int, d: int, heads: int, kv_heads: int, f: int, vocabulary: int,
        use_reentrant: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.use_reentrant = use_reentrant
        self.embed = nn.Embedding(vocabulary, d)
        self.blocks = nn.ModuleList(Block(d, heads, kv_heads, f) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d), nn.Linear(d, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            if self.use_reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(self.norm(x))


def small(kv_heads: int, use_reentrant: bool | None = None) -> Decoder:
    return Decoder(layers=2, d=64, heads=4, kv_heads=kv_heads, f=96, vocabulary=100,
                   use_reentrant=use_reentrant)  # fmt: skip


@pytest.mark.parametrize("use_reentrant", [None, False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
def test_a_plain_model_with_either_checkpointing(
    dtype: torch.dtype | None, use_reentrant: bool | None
) -> None:
    B, S, L, d, f, V, H, K, D = 2, 32, 2, 64, 96, 100, 4, 4, 16
    T = B * S
    layers, head = L * 2 * T * (d * H * D + 2 * d * K * D + H * D * d + 3 * d * f), 2 * T * d * V
    attention = L * 4 * B * H * S * S * D
    again = {None: 0, False: layers - L * 2 * T * f * d, True: layers}[use_reentrant]
    ledger = ledger_of(lambda: small(K, use_reentrant), (B, S), V, autocast=dtype)
    assert products_and_attention(ledger) == (
        (layers + head, 2 * (layers + head), again),
        (attention, 5 * attention // 2, 0 if use_reentrant is None else attention),
    )


def torch_counts(
    make: Callable[[], nn.Module], shape: tuple[int, int], device: str = "meta"
) -> tuple[int, int]:
    """FlopCounterMode's FLOPs of the forward pass and of the backward pass, on this device."""
    with torch.device(device):
        model = make().train()
        ids = torch.zeros(shape, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        loss = loss_of(model, ids)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def convnet() -> nn.Module:
    """Without groups: that counter's backward of a grouped convolution is not twice its forward."""
    return nn.Sequential(
        nn.Embedding(100, 32), nn.Unflatten(1, (4, 8)),
        nn.Conv2d(4, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GELU(),
        nn.ConvTranspose2d(32, 8, 2, stride=2), nn.Flatten(),
        nn.Linear(8 * 8 * 32, 32 * 100), nn.Unflatten(1, (32, 100)),
    )  # fmt: skip


ORACLE_MODELS: dict[str, Callable[[], nn.Module]] = {
    "multi-head": lambda: small(4),
    "grouped-query": lambda: small(2),
    "checkpointed": lambda: small(4, use_reentrant=False),
    "re-entrant": lambda: small(4, use_reentrant=True),
    "convolutions": convnet,
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=100, n_embd=64, n_layer=2, n_head=4)),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(vocab_size=100, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2)
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("name", ORACLE_MODELS)
def test_torchs_counter_agrees_where_attention_is_written_out(name: str, device: str) -> None:
    """The math backend: plain products, which that counter counts on any device."""
    make = ORACLE_MODELS[name]
    with sdpa_kernel(SDPBackend.MATH):
        expected = torch_counts(make, (2, 32), device)
        ledger = ledger_of(make, (2, 32), 100, autocast=None)
    matmul = phases(ledger, *(kind for kind in Kind if kind.is_matmul))
    forward, backward, recompute = matmul
    assert (forward, backward + recompute) == expected
    assert (recompute > 0) == (name in ("checkpointed", "re-entrant"))


@pytest.mark.parametrize("name", ["multi-head", "grouped-query", "checkpointed", "gpt2", "llama"])
def test_torchs_counter_agrees_on_the_kernels_the_chip_would_run(name: str) -> None:
    """Fused attention, which only CUDA has: torch's counter inside the virtual GPU sees it."""
    if name in ("grouped-query", "llama"):
        need_grouped_queries()
    make = ORACLE_MODELS[name]
    counted: list[int] = []

    def script() -> None:
        model = make().to("cuda").train()
        ids = torch.randint(0, 100, (2, 32), device="cuda")
        for autocast in (False, True):
            with FlopCounterMode(display=False) as counter:
                with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
                    loss = loss_of(model, ids)
                loss.backward()
            counted.append(counter.get_total_flops())

    ledger = account(run(script, gpu="H100-SXM"))
    assert sum(counted) == ledger.total.flops_matmul > 0
    assert any(entry.kind is Kind.ATTENTION for entry in ledger.entries)


# Memory ----------------------------------------------------------------------------------------


def held(ledger: Ledger, category: Category, tick: int) -> int:
    return ledger.memory.by_category()[category].at(tick)


def first_backward_tick(ledger: Ledger) -> int:
    """When the loss is computed and nothing of the backward pass: all activations are held."""
    return next(entry.op.clock for entry in ledger.entries if entry.op.phase is Phase.BACKWARD)


def rounded(*sizes_bytes: int) -> int:
    return sum(map(allocated_bytes, sizes_bytes))


def one_step(
    make: Callable[[], nn.Module],
    batch: Callable[[], Tensor],
    optimizer: Callable[..., torch.optim.Optimizer],
    autocast: torch.dtype | None = None,
) -> Ledger:
    def script() -> None:
        model = make().to("cuda")
        stepper = optimizer(model.parameters())
        x = batch()
        with torch.autocast("cuda", dtype=autocast, enabled=autocast is not None):
            loss = model(x).sum()
        loss.backward()
        stepper.step()

    ledger = account(run(script, gpu="H100-SXM"))
    ledger.check()
    return ledger


def mlp(d: int, f: int) -> nn.Module:
    return nn.Sequential(nn.Linear(d, f), nn.GELU(), nn.Linear(f, d))


@pytest.mark.parametrize(
    ("optimizer", "copies", "counter_bytes"),
    [
        (lambda parameters: torch.optim.AdamW(parameters), 2, 0),  # the step count is the host's
        (lambda parameters: torch.optim.AdamW(parameters, fused=True), 2, 4),
        (lambda parameters: torch.optim.Adam(parameters, amsgrad=True), 3, 0),
        (lambda parameters: torch.optim.SGD(parameters), 0, 0),
        (lambda parameters: torch.optim.SGD(parameters, momentum=0.9), 1, 0),
        (lambda parameters: torch.optim.RMSprop(parameters), 1, 0),
    ],
    ids=["AdamW", "fused AdamW", "AMSGrad", "SGD", "momentum", "RMSprop"],
)
@pytest.mark.parametrize(("d", "f"), [(128, 512), (5, 7)])
def test_weights_gradients_and_optimizer_state(
    d: int, f: int, optimizer: Callable[..., torch.optim.Optimizer], copies: int, counter_bytes: int
) -> None:
    """Weights of two matrices and two biases, float32; 5 x 7 leaves most of 512 bytes empty."""
    ledger = one_step(lambda: mlp(d, f), lambda: torch.randn(3, d, device="cuda"), optimizer)
    weights = rounded(4 * f * d, 4 * f, 4 * d * f, 4 * d)
    end = ledger.trace.step_ends[-1] - 1
    assert held(ledger, Category.PARAMETERS, end) == weights
    assert held(ledger, Category.GRADIENTS, end) == weights
    counters = 4 * rounded(counter_bytes)
    assert held(ledger, Category.OPTIMIZER_STATE, end) == copies * weights + counters


@pytest.mark.parametrize("sizes", [(64, 128, 512), (3, 5, 7)])
def test_activations_of_an_mlp(sizes: tuple[int, int, int]) -> None:
    """GELU keeps what it was given, the second layer what GELU gave: two (B, f) tensors.

    The first layer keeps the batch, which is an input. The sum keeps nothing, but the backward
    pass starts from the loss itself.
    """
    B, d, f = sizes
    ledger = one_step(
        lambda: mlp(d, f), lambda: torch.randn(B, d, device="cuda"), torch.optim.AdamW
    )
    tick = first_backward_tick(ledger)
    hidden, loss = 4 * B * f, 4
    assert held(ledger, Category.ACTIVATIONS, tick) == rounded(hidden, hidden, loss)
    assert held(ledger, Category.INPUTS, tick) == rounded(4 * B * d)
    assert ledger.total.bytes_saved == rounded(hidden, hidden, loss)


class OneBlock(nn.Module):
    """LayerNorm, causal attention, LayerNorm, GELU feed-forward; in bfloat16 throughout."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.norm2(x))))


@pytest.mark.parametrize("sizes", [(2, 256, 128, 4), (1, 24, 16, 2)])
def test_activations_of_a_transformer_block(sizes: tuple[int, int, int, int]) -> None:
    """As Korthikanti et al. count (arXiv:2205.05198, section 4.1), of a block without dropout.

    Kept in bfloat16, in units of 2*B*S*d bytes: one each for norm 1's result, the first sum (norm
    2's input) and norm 2's result; three for queries, keys and values, one for attention's result;
    four each for GELU's input and result. The block's own input is the batch. In float32: mean and
    reciprocal deviation of both norms (B*S each) and attention's log-sum-exp (B*H*S). Beside them
    the state of attention's random numbers, three words, and the loss.
    """
    B, S, d, H = sizes
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        ledger = one_step(
            lambda: OneBlock(d, H).to(torch.bfloat16),
            lambda: torch.randn(B, S, d, device="cuda", dtype=torch.bfloat16),
            torch.optim.SGD,
        )
    width, statistics, logsumexp = 2 * B * S * d, 4 * B * S, 4 * B * H * S
    kept = rounded(
        *(width, width, width, 3 * width, width, 4 * width, 4 * width),
        *4 * [statistics],
        logsumexp,
        *(16, 8),  # seed and offset in one, and one that is unused
        2,
    )
    tick = first_backward_tick(ledger)
    assert held(ledger, Category.ACTIVATIONS, tick) == kept
    assert held(ledger, Category.INPUTS, tick) == rounded(width)
    assert ledger.total.bytes_saved == kept
