"""Files of public repositories, unmodified, from checkouts.

B: batch.  T: tokens.  S: sequence.  d: width.  V: vocabulary.  L: layers.
"""

import re
from functools import partial
from typing import Any

from tests.corpus import data
from tests.corpus.case import WHOLE, Case, Counted, Figures
from tests.corpus.sums import attention, conv, fused_attention, linear, trained

# pytorch/examples --------------------------------------------------------------------------------

example = partial(Case, repository="pytorch/examples")
VISION = ("torchvision",)

MNIST = Figures(
    parameters=10 * 32 + (9 * 32 + 1) * 64 + 9217 * 128 + 129 * 10,
    flops=trained(
        conv(64, 24, 32, 64, 3), linear(64, 9216, 128), linear(64, 128, 10),
        first=conv(64, 26, 1, 32, 3),
    ),
)  # fmt: skip

MNIST_RNN = Figures(
    parameters=4 * 64 * (28 + 64 + 2) + 2 * 64 + 65 * 32 + 33 * 10,
    # cuDNN computes the gradient of its input whether or not anything wants it.
    flops=trained(
        linear(64 * 28, 28, 4 * 64), linear(64 * 28, 64, 4 * 64),
        linear(64, 64, 32), linear(64, 32, 10),
    ),
)  # fmt: skip

FORWARD_FORWARD = Figures(
    parameters=785 * 500,
    # Good and bad images by the first layer alone: each is its own model.
    flops=trained(first=2 * linear(data.IMAGES[0], 784, 500)),
)

VAE = Figures(
    parameters=785 * 400 + 2 * 401 * 20 + 21 * 400 + 401 * 784,
    flops=trained(
        2 * linear(128, 400, 20), linear(128, 20, 400), linear(128, 400, 784),
        first=linear(128, 784, 400),
    ),
)  # fmt: skip


def super_resolution(B: int = 4, side: int = 85, factor: int = 3) -> Figures:
    return Figures(
        parameters=26 * 64 + 577 * 64 + 577 * 32 + 289 * factor**2,
        flops=trained(
            conv(B, side, 64, 64, 3), conv(B, side, 64, 32, 3), conv(B, side, 32, factor**2, 3),
            first=conv(B, side, 1, 64, 5),
        ),
    )  # fmt: skip


def recurrent(gates: int, B: int = 20, S: int = 35, d: int = 200, L: int = 2) -> Figures:
    V = data.VOCABULARY
    return Figures(
        parameters=V * d + L * gates * d * (2 * d + 2) + (d + 1) * V,
        flops=trained(L * 2 * linear(B * S, d, gates * d), linear(B * S, d, V)),
    )


def transformer(B: int = 20, S: int = 35, d: int = 200, L: int = 2) -> Figures:
    """nn.Transformer's encoder, its decoder replaced by a layer."""
    V = data.VOCABULARY
    return Figures(
        parameters=V * d + L * (6 * d * (d + 1) + 4 * d) + 2 * d + (d + 1) * V,
        flops=trained(L * 6 * linear(B * S, d, d), linear(B * S, d, V))
        + fused_attention(B, S, d, L),
    )


def gcn(d: int = 16, kinds: int = 7) -> Figures:
    """Features and citations are sparse: two FLOPs for a value and a column."""
    ones, edges = data.cora_values()
    citations = linear(1, edges, d) + linear(1, edges, kinds)
    return Figures(
        parameters=data.WORDS * d + d * kinds,
        flops=trained(linear(data.PAPERS, d, kinds), first=linear(1, ones, d)) + 2 * citations,
    )


def gat(d: int = 64, H: int = 8, kinds: int = 7) -> Figures:
    """Attention of H heads over all papers, averaged; then of one head."""
    N = data.PAPERS
    rest = [
        2 * linear(N, H * d, 1), 2 * H * N * N * d,
        linear(N, d, kinds), 2 * linear(N, kinds, 1), 2 * N * N * kinds,
    ]  # fmt: skip
    return Figures(
        parameters=data.WORDS * H * d + H * 2 * d + d * kinds + 2 * kinds,
        flops=trained(*rest, first=linear(N, data.WORDS, H * d)),
    )


GCN, GAT = gcn(), gat()

VGG_PAIRS = (
    (3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256), (256, 256),
    (256, 512), (512, 512), (512, 512),
)  # fmt: skip
"""Channels of VGG16's convolutions up to its tenth."""

EXAMPLES = (
    example(
        name="mnist", folder="mnist", command=("main.py", "--epochs", "1"),
        packages=VISION, data=data.mnist, figures=MNIST,
    ),
    example(
        name="mnist_rnn", folder="mnist_rnn", command=("main.py", "--epochs", "1", "--accel"),
        packages=VISION, data=data.mnist, figures=MNIST_RNN,
    ),
    example(
        name="mnist_forward_forward", folder="mnist_forward_forward",
        command=("main.py", "--epochs", "20"), steps=17, period="steady-state step 17",
        packages=VISION, data=data.mnist_inside, figures=FORWARD_FORWARD,
    ),
    example(
        name="siamese_network", folder="siamese_network", command=("main.py", "--epochs", "1"),
        packages=VISION, data=data.mnist, figures=Counted(),
    ),
    example(
        name="vae", folder="vae", command=("main.py", "--epochs", "1"),
        packages=VISION, data=data.vae, figures=VAE,
    ),
    example(
        name="dcgan", folder="dcgan",
        command=("main.py", "--dataset", "fake", "--accel", "--workers", "0"),
        packages=VISION,
        figures=Counted(arguments=("main.py", "--dataset", "fake", "--workers", "0"),
                        steps_of_optimizers=2, after=2),  # samples are drawn behind the first
    ),
    example(
        name="imagenet ResNet-18", folder="imagenet",
        command=("--steps", "3", "main.py", "--dummy", "-a", "resnet18", "-b", "8", "-j", "0"),
        steps=3, period="steady-state step 3", packages=VISION, figures=Counted(),
    ),
    example(
        name="imagenet ViT-B/16 on GPU 0", folder="imagenet",
        command=("--steps", "3", "main.py", "--dummy", "-a", "vit_b_16", "-b", "2", "-j", "0",
                 "--gpu", "0"),
        steps=3, period="steady-state step 3", packages=VISION,
        # Of its sequence the class token, and 14 x 14 patches. The counter's unfused backward
        # is four products, the fused one five.
        figures=Counted(arguments=("main.py", "--dummy", "-a", "vit_b_16", "-b", "2", "-j", "0"),
                        attention=attention(2, 197, 768, 12) // 2),
    ),
    example(
        name="word_language_model LSTM", folder="word_language_model",
        command=("--steps", "3", "main.py", "--accel", "--epochs", "1"), steps=3,
        period="steady-state step 3", data=data.words, figures=recurrent(4),
    ),
    example(
        name="word_language_model GRU", folder="word_language_model",
        command=("--steps", "3", "main.py", "--accel", "--epochs", "1", "--model", "GRU"),
        steps=3, period="steady-state step 3", data=data.words, figures=recurrent(3),
    ),
    example(
        name="word_language_model Transformer", folder="word_language_model",
        command=("--steps", "3", "main.py", "--accel", "--epochs", "1", "--model", "Transformer"),
        steps=3, period="steady-state step 3", data=data.words, figures=transformer(),
    ),
    example(
        name="gcn", folder="gcn", command=("main.py", "--epochs", "3"), data=data.cora,
        figures=GCN,
    ),
    example(
        name="gat", folder="gat", command=("main.py", "--epochs", "3"), data=data.cora,
        figures=GAT,
    ),
    example(
        name="super_resolution", folder="super_resolution",
        command=("main.py", "--upscale_factor", "3", "--batchSize", "4", "--accel"),
        packages=(*VISION, "six"), data=data.bsds, figures=super_resolution(),
    ),
    example(
        name="fast_neural_style", folder="fast_neural_style",
        command=("neural_style/neural_style.py", "train", "--dataset", "images", "--style-image",
                 "style.png", "--save-model-dir", "models", "--epochs", "1", "--image-size", "64",
                 "--batch-size", "2", "--accel"),
        packages=VISION, data=data.pictures,
        figures=Counted(arguments=(
            "neural_style/neural_style.py", "train", "--dataset", "images", "--style-image",
            "style.png", "--save-model-dir", "models", "--epochs", "1", "--image-size", "64",
            "--batch-size", "2",
        ), frozen=sum((9 * n + 1) * m for n, m in VGG_PAIRS)),
    ),
    example(
        name="ddp-tutorial-series single_gpu", folder="distributed/ddp-tutorial-series",
        command=("single_gpu.py", "1", "1"),
        figures=Figures(parameters=21, flops=trained(first=linear(32, 20, 1))),
    ),
    example(
        name="regression, which asks for no GPU", folder="regression", command=("main.py",),
        figures=Figures(parameters=0, flops=0), steps=0, ending="exit", period=WHOLE,
        prints=("Learned function",),
    ),
)  # fmt: skip

# karpathy/nanoGPT and minGPT ---------------------------------------------------------------------

nano = partial(Case, repository="karpathy/nanoGPT")
mini = partial(Case, repository="karpathy/minGPT")


def gpt(B: int, S: int, d: int, V: int, L: int) -> Figures:
    """nanoGPT's, without biases and with one matrix for both ends, its attention fused."""
    return Figures(
        parameters=V * d + S * d + L * (12 * d * d + 2 * d) + d,
        flops=trained(L * linear(B * S, d, 12 * d), linear(B * S, d, V))
        + fused_attention(B, S, d, L),
    )


def mingpt(B: int, S: int, d: int, V: int, L: int) -> Figures:
    """minGPT's, with biases and a head of its own, its attention in four products."""
    return Figures(
        parameters=V * d + S * d + L * (12 * d * d + 13 * d) + 2 * d + V * d,
        flops=trained(L * linear(B * S, d, 12 * d), linear(B * S, d, V), attention(B, S, d, L)),
    )


def sampled(new: int, d: int = 384, V: int = data.CHARACTERS, L: int = 6) -> Figures:
    """From one character on, without a cache; the head on the last position alone."""
    lengths = range(1, new + 1)
    return Figures(
        parameters=gpt(1, 256, d, V, L).parameters,
        flops=sum(
            L * linear(S, d, 12 * d) + attention(1, S, d, L) + linear(1, d, V) for S in lengths
        ),
    )


KARPATHY = (
    nano(
        name="nanoGPT train.py",
        command=("train.py", "--gradient_accumulation_steps=1", "--eval_iters=1"),
        data=data.tokens, figures=gpt(12, 1024, 768, 50304, 12),
    ),
    nano(
        name="nanoGPT train.py on Shakespeare",
        command=("train.py", "config/train_shakespeare_char.py", "--eval_iters=2"),
        data=data.characters, figures=gpt(64, 256, 384, data.CHARACTERS, 6),
    ),
    nano(
        name="nanoGPT bench.py", command=("bench.py", "--real_data=False", "--compile=False"),
        figures=gpt(12, 1024, 768, 50304, 12),
    ),
    nano(
        name="nanoGPT sample.py",
        command=("sample.py", "--num_samples=1", "--max_new_tokens=8"), packages=("tiktoken",),
        data=data.checkpoint, figures=sampled(8), steps=0, ending="exit", period=WHOLE,
    ),
    mini(
        name="minGPT adder", command=("projects/adder/adder.py",), figures=mingpt(64, 6, 48, 10, 3),
    ),
    mini(
        name="minGPT chargpt", command=("projects/chargpt/chargpt.py",), data=data.play,
        figures=mingpt(64, 128, 192, 32, 6),
    ),
    mini(name="minGPT demo.ipynb", command=("demo.ipynb",), figures=mingpt(64, 11, 48, 3, 3)),
)  # fmt: skip

# stanford-cs336 ----------------------------------------------------------------------------------


def lecture(runs: int, steps: int, B: int, D: int, layers: int) -> int:
    """Of the whole of lecture 2: `runs` trainings of `steps` steps at the end."""
    points, wide, narrow = 16384, 32768, 8192
    timed = 11 * linear(points, wide, narrow)  # once, and five times in two dtypes
    deep = trained(linear(points, wide, narrow), first=linear(points, wide, wide))
    cruncher = 2 * linear(8, 64, 64) + linear(8, 64, 1)
    adagrad = trained(linear(2, 4, 4), linear(2, 4, 1), first=linear(2, 4, 4))
    truth = linear(B, D, 1)
    trainings = runs * steps * (truth + trained(first=linear(B, D, 1)))
    assert layers == 0
    return timed + deep + cruncher + adagrad + trainings


def utilizations(report: dict[str, Any], stdout: str) -> list[str]:
    """The lecture's own MFU, of float32 and bfloat16, by its own clock."""
    printed = [float(each) for each in re.findall(r"MFU \(\w+\): ([\d.e+-]+)", stdout)]
    if len(printed) == 2 and all(0 < each < 1 for each in printed):
        return []
    return [f"the lecture's MFU: {printed}"]


SHOW_MFU = """\
import sys
import lecture_02

def look(frame, event, _):
    if event == "return" and frame.f_code.co_name == "tensor_operations_flops":
        print("MFU (float32):", frame.f_locals["mfu"])
        print("MFU (bfloat16):", frame.f_locals["bf16_mfu"])

sys.setprofile(look)
lecture_02.main()
"""
"""The lecture keeps its MFU to itself."""

lectures = partial(Case, ending="exit", period=WHOLE)

CS336 = (
    lectures(
        name="CS336 lecture 2 of 2024", repository="stanford-cs336/spring2024-lectures",
        command=("--steps", "all", "lecture_02.py"), packages=("wandb", "requests"),
        figures=Figures(parameters=0, flops=lecture(2, 100, 4, 16, 0)), steps=201,
        check=utilizations,
    ),
    lectures(
        name="CS336 lecture 2 of 2025", repository="stanford-cs336/spring2025-lectures",
        command=("--steps", "all", "lecture_02.py"),
        packages=("einops", "jaxtyping", "requests"),
        figures=Figures(parameters=0, flops=lecture(2, 10, 4, 16, 0)), steps=21,
    ),
    lectures(
        name="CS336 lecture 2 of 2025, its MFU", repository="stanford-cs336/spring2025-lectures",
        command=("--steps", "all", "-c", SHOW_MFU), packages=("einops", "jaxtyping", "requests"),
        figures=Figures(parameters=0, flops=lecture(2, 10, 4, 16, 0)), steps=21,
        check=utilizations,
    ),
)  # fmt: skip

CASES = (*EXAMPLES, *KARPATHY, *CS336)
