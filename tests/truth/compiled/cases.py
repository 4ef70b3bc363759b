"""Training steps that compile: the same code runs on the CUDA build and on the virtual GPU.

B: batch. T: tokens. All are small models of the kinds that people compile, two layers deep.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from tests.truth.models import GPTConfig

Compiler = Callable[[Any], Any]
Step = Callable[[], Iterator[str]]
"""One training step; yields the name of each part when it is done."""


@dataclass(frozen=True, slots=True)
class Case:
    make: Callable[[Compiler], Step]
    chip: str = "H100-SXM"
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `torch.compile`."""
    steps: int = 3
    """The second has optimizer state, the third what a first one left in the allocator."""
    pads: bool = False
    """Whether inductor pads every product that it may pad: a measurement on the device decides."""


def bfloat16() -> torch.autocast:
    return torch.autocast("cuda", dtype=torch.bfloat16)


def training(model: nn.Module, run: Any, loss_of: Callable[[Any], Tensor]) -> Step:
    """Forward under autocast, backward, clipping, and fused AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> Iterator[str]:
        with bfloat16():
            loss = loss_of(run)
        yield "forward"
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        yield "backward"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield "optimizer"

    return step


# Language models of transformers.


def tokens(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(0, vocabulary, shape, device="cuda")


def language_model(model: nn.Module, compiler: Compiler, vocabulary: int, *shape: int) -> Step:
    def loss_of(run: Any) -> Tensor:
        batch = tokens(vocabulary, *shape)
        loss: Tensor = run(input_ids=batch, labels=batch).loss
        return loss

    return training(model, compiler(model), loss_of)


def gpt2(
    compiler: Compiler, *, attention: str = "sdpa", dropout: float = 0.0, vocabulary: int = 50304
) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, vocab_size=vocabulary, attn_implementation=attention, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
    )  # fmt: skip
    return language_model(GPT2LMHeadModel(config).cuda().train(), compiler, 50000, 8, 1024)


def gpt2_flash(compiler: Compiler) -> Step:
    """Causal without a mask, as nanoGPT's: transformers hands its mask on, which flash refuses."""
    model = GPTConfig(layers=2, width=768, heads=12, vocabulary=50304).build().cuda()

    def loss_of(run: Any) -> Tensor:
        batch = tokens(50000, 12, 1024)
        loss: Tensor = run(batch, batch)
        return loss

    return training(model, compiler(model), loss_of)


def llama_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=2, num_attention_heads=16,
        num_key_value_heads=4, vocab_size=32000, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config).cuda().train()


def llama(compiler: Compiler) -> Step:
    return language_model(llama_model(), compiler, 32000, 4, 2048)


def llama_per_block(compiler: Compiler) -> Step:
    """One graph for all blocks. Called one by one: the model would look at positions' values."""
    llama = llama_model().model
    blocks = [compiler(layer) for layer in llama.layers]

    def loss_of(run: Any) -> Tensor:
        x = run.embed_tokens(tokens(32000, 4, 2048))
        positions = run.rotary_emb(x, torch.arange(2048, device="cuda")[None])
        for block in blocks:
            x = block(x, position_embeddings=positions)
        mean: Tensor = run.norm(x).float().pow(2).mean()
        return mean

    return training(llama, llama, loss_of)


def bert(compiler: Compiler) -> Step:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(num_hidden_layers=2)
    return language_model(BertForMaskedLM(config).cuda().train(), compiler, 30000, 16, 512)


def t5(compiler: Compiler) -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(num_layers=2, num_decoder_layers=2, decoder_start_token_id=0, use_cache=False)
    return language_model(
        T5ForConditionalGeneration(config).cuda().train(), compiler, 32000, 8, 512
    )


class Experts(nn.Module):
    """A mixture of experts without dropping: each token goes to all, weighted by its two best."""

    def __init__(self, width: int = 512, experts: int = 8) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, 2 * width))
        self.down = nn.Parameter(torch.empty(experts, 2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        weights, best = self.router(x).softmax(-1).topk(2)
        gates = torch.zeros(*x.shape[:-1], self.up.shape[0], device=x.device, dtype=weights.dtype)
        gates = gates.scatter(-1, best, weights / weights.sum(-1, keepdim=True))
        hidden = F.silu(torch.einsum("btd,edh->ebth", x, self.up))
        return torch.einsum("ebth,ehd,bte->btd", hidden, self.down, gates)


def experts(compiler: Compiler) -> Step:
    model = nn.Sequential(Experts(), nn.LayerNorm(512), Experts()).cuda()
    return training(
        model, compiler(model), lambda run: run(torch.zeros(8, 512, 512, device="cuda")).mean()
    )


# Pictures.


def pictures(model: nn.Module, compiler: Compiler, *, channels_last: bool = False) -> Step:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.cuda().train().to(memory_format=layout)

    def loss_of(run: Any) -> Tensor:
        batch = torch.zeros(32, 3, 224, 224, device="cuda").to(memory_format=layout)
        labels = torch.zeros(32, dtype=torch.long, device="cuda")
        return F.cross_entropy(run(batch).logits, labels)

    return training(model, compiler(model), loss_of)


def vit(compiler: Compiler) -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_hidden_layers=2, num_labels=1000)
    return pictures(ViTForImageClassification(config), compiler)


def resnet(compiler: Compiler, *, channels_last: bool = False) -> Step:
    """ResNet-50."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(depths=[3, 4, 6, 3], num_labels=1000)
    return pictures(ResNetForImageClassification(config), compiler, channels_last=channels_last)


def depthwise(compiler: Compiler) -> Step:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(depth_multiplier=0.5, num_labels=1000)
    return pictures(MobileNetV2ForImageClassification(config), compiler)


# What the compiler treats in its own way.


class Block(nn.Module):
    """A pre-norm transformer block, causal."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm(x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class FlexBlock(Block):
    """With a sliding window as a block mask."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.mask = create_block_mask(
            lambda b, h, q, k: (q >= k) & (q - k < 256), None, None, tokens, tokens, device="cuda"
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attended = flex_attention(q, k, v, block_mask=self.mask)
        assert isinstance(attended, Tensor)
        return attended


class Printing(Block):
    """A print ends the graph within each block."""

    def forward(self, x: Tensor) -> Tensor:
        x = super().forward(x)
        print("", end="")
        return x * 0.5


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def blocks(model: nn.Module, compiler: Compiler, *lengths: int) -> Step:
    """Steps over batches of these lengths, in turn."""
    model = model.cuda()
    turns = iter(lengths * 8)

    def loss_of(run: Any) -> Tensor:
        return run(torch.zeros(8, next(turns), 512, device="cuda")).pow(2).mean()  # type: ignore[no-any-return]

    return training(model, compiler(model), loss_of)


def backward_too(compiler: Compiler) -> Step:
    """The function that calls `backward` is compiled, and by compiled autograd so is that."""
    model = nn.Sequential(Block(), Block()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def there_and_back(x: Tensor) -> None:
        with bfloat16():
            loss = model(x).pow(2).mean()
        loss.backward()

    run = compiler(there_and_back)

    def step() -> Iterator[str]:
        with torch._dynamo.config.patch(compiled_autograd=True):
            run(torch.zeros(8, 512, 512, device="cuda"))
        yield "backward"
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield "optimizer"

    return step


TEMPLATES = {"options": {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}}
"""No product is the library's. All of its templates tie, and one with what follows fused is tried
against two kernels: what can be fused is.
"""

A100 = "A100-SXM-40GB"
CASES = {
    "gpt2": Case(gpt2, A100),
    "gpt2, flash": Case(gpt2_flash, A100),
    "gpt2, attention by hand": Case(lambda c: gpt2(c, attention="eager"), A100),
    "gpt2, dropout, odd vocabulary": Case(lambda c: gpt2(c, dropout=0.1, vocabulary=50257), A100),
    "gpt2, odd vocabulary, padded": Case(lambda c: gpt2(c, vocabulary=50257), A100, pads=True),
    "gpt2, reduce-overhead": Case(gpt2, A100, {"mode": "reduce-overhead"}, steps=4),
    "llama": Case(llama),
    "llama per block": Case(llama_per_block),
    "mixture of experts": Case(experts),
    "mixture of experts, templates": Case(experts, options=TEMPLATES),
    "bert": Case(bert),
    "t5": Case(t5),
    "vit": Case(vit),
    "resnet50": Case(resnet),
    "resnet50, channels last": Case(lambda c: resnet(c, channels_last=True)),
    "depthwise": Case(depthwise),
    "flex_attention": Case(lambda c: blocks(FlexBlock(1024), c, 1024)),
    "graph break": Case(lambda c: blocks(nn.Sequential(Printing(), Printing()), c, 512)),
    "compiled autograd": Case(backward_too),
    "checkpointing": Case(lambda c: blocks(Checkpointed(), c, 512)),
    "blocks, reduce-overhead": Case(
        lambda c: blocks(nn.Sequential(Block(), Block()), c, 512),
        options={"mode": "reduce-overhead"},
        steps=4,
    ),
    # The second length makes the size a symbol, which the third fits.
    "dynamic shapes": Case(lambda c: blocks(Block(), c, 512, 384, 256, 640), steps=4),
    # A symbol at once. Not the width's 512: sizes that are equal at first become one symbol.
    "dynamic shapes from the first": Case(
        lambda c: blocks(Block(), c, 384, 256, 640, 768), options={"dynamic": True}, steps=4
    ),
}


def case_of(name: str) -> Case:
    """Raises ValueError for a name that no case has."""
    if name not in CASES:
        raise ValueError(f"no case is called {name!r}; there are {', '.join(CASES)}")
    return CASES[name]
