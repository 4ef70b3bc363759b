"""Scripts as the documentation of libraries shows them, at toy sizes.

B: batch.  T: tokens.  S: sequence.  d: width.  f: feed-forward width.  V: vocabulary.  L: layers.
"""

from typing import Any

from tests.corpus import data
from tests.corpus.case import Case, Counted, Figures
from tests.corpus.sums import attention, fused_attention, linear, trained

V, d, f, L = data.LLAMA.values()

WEIGHTS = L * (4 * d * d + 3 * d * f) + V * d
"""Elements of the matrices that every token of the small Llama meets."""
LLAMA = WEIGHTS + V * d + L * 2 * d + d
"""Its parameters: with the embedding, and norms."""


def small_llama(B: int, S: int) -> Figures:
    return Figures(
        parameters=LLAMA, flops=trained(linear(B * S, WEIGHTS, 1)) + fused_attention(B, S, d, L)
    )


def megatron_llama(B: int, S: int, ranks: int) -> Figures:
    """A rank's part: of all matrices and heads, and every norm. Its DDP has parameters in a buffer
    of a multiple of 128 numbers (core/distributed/param_and_grad_buffer.py).
    """
    norms, whole = (2 * L + 1) * d, small_llama(B, S)
    parameters = (whole.parameters - norms) // ranks + norms
    return Figures(parameters=-(-parameters // 128) * 128, flops=whole.flops // ranks)


def checkpointed(B: int = 2, S: int = 64, d: int = 128, f: int = 256, V: int = 1000) -> Figures:
    """Two micro-batches of a Llama of two layers, four heads and two for keys and values."""
    layer = 3 * d * d + 3 * d * f
    layers, head = linear(B * S, 2 * layer, 1), linear(B * S, d, V)
    # Recomputation stops before a layer's last product: its input was the last thing missing.
    again = layers - 2 * linear(B * S, f, d) + attention(B, S, d, 2)
    micro_batch = trained(layers, head) + again + fused_attention(B, S, d, 2)
    return Figures(parameters=2 * V * d + 2 * (layer + 2 * d) + d, flops=2 * micro_batch)


def perceptron(hidden: int, out: int, B: int = 16) -> tuple[int, int]:
    """(parameters, FLOPs of a step) of 64 to hidden to out."""
    flops = trained(linear(B, hidden, out), first=linear(B, 64, hidden))
    return 65 * hidden + (hidden + 1) * out, flops


def library(name: str, script: str, figures: Figures | Counted, **others: Any) -> Case:
    return Case(name=name, command=(f"libraries/{script}.py",), figures=figures, **others)


def two_micro_batches() -> Figures:
    parameters, flops = perceptron(256, 10)
    return Figures(parameters=parameters, flops=2 * flops)


def one_batch() -> Figures:
    parameters, flops = perceptron(256, 64)
    return Figures(parameters=parameters, flops=flops)


T5_SCORES = attention(4, 32, 64, 2) + attention(4, 16, 64, 2) + 2 * 4 * 4 * 16 * 32 * 64
"""Of the encoder over 32 tokens, the decoder over 16, and from one to the other."""


def lora_scores(B: int, S: int) -> int:
    """What the fused backward pass computes beyond the counted one: the scores again, and the
    gradient of the first layer's keys, which nothing trained makes.
    """
    return attention(B, S, d, L) // 2 + attention(B, S, d, 1) // 2


TRL_KERNELS = "triton._forward_kernel", "triton._backward_kernel"
"""Of TRL 1.16: they fold logits into log-probabilities. The products are PyTorch's."""
LAYERS, HEAD = WEIGHTS - V * d, V * d


def learnt(B: int, P: int, C: int) -> int:
    """Answers of C tokens to prompts of P. Their head runs again in the backward pass."""
    S = P + C
    return 6 * B * S * LAYERS + 8 * B * C * HEAD + fused_attention(B, S, d, L)


def dpo(B: int, P: int, C: int) -> Figures:
    """A reference model runs forward, besides."""
    reference = 2 * B * (P + C) * LAYERS + 2 * B * C * HEAD + attention(B, P + C, d, L)
    return Figures(parameters=2 * LLAMA, trained=LLAMA, flops=learnt(B, P, C) + reference)


def grpo(B: int, P: int, C: int) -> Figures:
    """The answers are generated first: the prompt, and a pass for each token but the first."""
    scores = attention(B, P, d, L) + sum(4 * B * keys * d * L for keys in range(P + 1, P + C))
    generated = 2 * B * (P + C - 1) * LAYERS + 2 * B * C * HEAD + scores
    return Figures(parameters=LLAMA, flops=learnt(B, P, C) + generated)


CASES = (
    library("transformers Trainer, checkpointed", "trainer", checkpointed()),
    library(
        "transformers Trainer by device_map", "device_map", small_llama(4, 32), data=data.llama,
        prints=(r"generated \(1, 8\)",),
    ),
    Case(
        name="transformers T5 with Adafactor",
        command=("--steps", "3", "libraries/summarise.py"),
        figures=Counted(attention=T5_SCORES // 2), steps=3, period="steady-state step 3",
    ),
    library("accelerate", "accelerated", two_micro_batches()),
    library(
        "peft LoRA", "lora", Counted(frozen=LLAMA, attention=lora_scores(4, 32)),
        packages=("peft",),
    ),
    library(
        "TRL SFT with LoRA", "sft", Counted(frozen=LLAMA, attention=attention(4, 33, d, L) // 2),
        packages=("trl", "peft", "datasets"), data=data.llama, uncounted=TRL_KERNELS,
    ),
    library(
        "TRL DPO", "dpo", dpo(B=8, P=7, C=25), packages=("trl", "datasets"), data=data.llama,
        uncounted=TRL_KERNELS,
    ),
    library(
        "TRL GRPO", "grpo", grpo(B=4, P=8, C=8), packages=("trl", "datasets"), data=data.llama,
        uncounted=TRL_KERNELS,
    ),
    Case(
        name="Megatron-Core", command=("libraries/megatron_core.py", "1"),
        figures=megatron_llama(4, 64, 1), packages=("megatron",),
    ),
    Case(
        name="Megatron-Core, tensor and sequence parallel",
        command=("libraries/megatron_core.py", "2"), ranks=2, figures=megatron_llama(4, 64, 2),
        packages=("megatron",), period="step 2",
    ),
    library("Lightning", "lightning_fit", two_micro_batches(), packages=("lightning",)),
    library(
        # Attention over 16 x 16 pixels: once down, once in the middle, twice up.
        "diffusers UNet", "diffusion", Counted(attention=attention(4, 256, 64, 4) // 2),
        packages=("diffusers",),
    ),
    library("timm ConvNeXt", "vision", Counted(), packages=("timm", "torchvision")),
    Case(
        name="torchvision ResNet-50", command=("--steps", "3", "libraries/classify.py"),
        figures=Counted(), packages=("torchvision",), steps=3, period="steady-state step 3",
    ),
    Case(
        name="ultralytics YOLO", command=("--steps", "3", "libraries/yolo.py"),
        figures=Counted(frozen=16, after=2),  # the bins that a box's distribution is summed over
        packages=("ultralytics", "torchvision"), data=data.yolo,
        steps=3, period="step 3",  # its losses' shapes differ from batch to batch
    ),
    library(
        "sentence-transformers", "embeddings", Counted(attention=attention(8, 32, d, L) // 2),
        packages=("sentence_transformers", "datasets"), data=data.bert,
    ),
    library("torchao quantisation-aware", "quantized", one_batch(), packages=("torchao",)),
    library(
        "bitsandbytes installed", "installed", Counted(attention=attention(4, 32, d, L) // 2),
        packages=("bitsandbytes",),
    ),
    library("PyTorch Geometric", "graphs", Counted(), packages=("torch_geometric",)),
)  # fmt: skip
