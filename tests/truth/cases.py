"""What is measured: models, and the ways people train them. A case is all that a run depends on.

The names are kept: a corpus that was measured once is found by them. A case that changes in any
other way no longer matches what was measured, and the comparison says so.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Generator, Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, Adafactor, AdamW
from torch.optim import Optimizer as TorchOptimizer

from tests.truth.models import (
    Attention,
    BertConfig,
    Checkpointing,
    Config,
    GPTConfig,
    LlamaConfig,
    LSTMConfig,
    ResNetConfig,
    T5Config,
    ViTConfig,
)


class Precision(StrEnum):
    FLOAT32 = "fp32"
    BFLOAT16_AUTOCAST = "bf16-autocast"
    FLOAT16_SCALER = "fp16-scaler"
    """Autocast to float16, with the loss scaled."""
    BFLOAT16 = "bf16"
    """Parameters, gradients and optimizer state too."""


AUTOCAST = {Precision.BFLOAT16_AUTOCAST: torch.bfloat16, Precision.FLOAT16_SCALER: torch.float16}

INITIAL_SCALE = 128.0
"""So low that no gradient overflows: an optimizer that skips a step would make its state later."""


class Optimizer(StrEnum):
    ADAMW_FOREACH = "adamw-foreach"
    ADAMW_FUSED = "adamw-fused"
    ADAMW_SINGLE = "adamw-single"
    """Tensor by tensor."""
    SGD = "sgd"
    """With momentum, in the form torch chooses."""
    ADAFACTOR = "adafactor"


Parameters = Iterator[nn.Parameter]

OPTIMIZERS: dict[Optimizer, Callable[[Parameters], TorchOptimizer]] = {
    Optimizer.ADAMW_FOREACH: lambda them: AdamW(them, lr=1e-4, foreach=True),
    Optimizer.ADAMW_FUSED: lambda them: AdamW(them, lr=1e-4, fused=True),
    Optimizer.ADAMW_SINGLE: lambda them: AdamW(them, lr=1e-4, foreach=False, fused=False),
    Optimizer.SGD: lambda them: SGD(them, lr=1e-2, momentum=0.9),
    Optimizer.ADAFACTOR: lambda them: Adafactor(them, lr=1e-3),
}

Mark = Callable[[str], None]
"""Told the name of a phase when it ends."""


@dataclass(frozen=True)
class Case:
    name: str
    model: Config
    batch: int
    sequence: int = 0
    """0 for images."""
    precision: Precision = Precision.BFLOAT16_AUTOCAST
    optimizer: Optimizer = Optimizer.ADAMW_FUSED
    clip: bool = False
    accumulation: int = 1
    """Batches in a step."""
    keeps_gradients: bool = False
    """`zero_grad(set_to_none=False)`."""
    channels_last: bool = False
    built_on_device: bool = False
    """Where its parameters are made; else on the host, and then moved."""
    compiled: str | None = None
    """The mode of `torch.compile` for the model; None where it runs eagerly."""
    needs_gpu: bool = False
    """The host lacks a kernel for it, even scaled down."""

    def small(self) -> "Case":
        """The same case, eager, with a model that trains in a moment on any machine."""
        sequence = min(self.sequence, 32)
        return replace(self, model=self.model.small(), batch=2, sequence=sequence, compiled=None)

    def train(self, device: torch.device) -> "Training":
        """Model and optimizer, ready for the first step."""
        with device if self.built_on_device else nullcontext():
            model = self.model.build()
        dtype = torch.bfloat16 if self.precision is Precision.BFLOAT16 else None
        if self.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        model = model.to(device=device, dtype=dtype).train()
        optimizer = OPTIMIZERS[self.optimizer](model.parameters())
        if self.compiled is not None:
            model = torch.compile(model, mode=self.compiled)
        return Training(self, device, model, optimizer)


class Training:
    """What a training script holds, and the body of its loop."""

    def __init__(
        self, case: Case, device: torch.device, model: nn.Module, optimizer: TorchOptimizer
    ) -> None:
        self.case, self.device = case, device
        self.model, self.optimizer = model, optimizer
        self.scaler: torch.amp.GradScaler | None = None
        if case.precision is Precision.FLOAT16_SCALER:
            self.scaler = torch.amp.GradScaler(device.type, init_scale=INITIAL_SCALE)
        self.generator = Generator().manual_seed(0)

    def batch(self) -> list[Tensor]:
        """A new batch, still on the host."""
        case = self.case
        inputs = case.model.sample(case.batch, case.sequence, self.generator)
        return [self.prepared(tensor) for tensor in inputs]

    def prepared(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == 4 and self.case.channels_last:
            tensor = tensor.to(memory_format=torch.channels_last)
        if tensor.is_floating_point() and self.case.precision is Precision.BFLOAT16:
            tensor = tensor.bfloat16()
        return tensor

    def autocast(self) -> AbstractContextManager[object]:
        dtype = AUTOCAST.get(self.case.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)

    def step(self, mark: Mark, batches: Sequence[list[Tensor]] | None = None) -> None:
        """One training step, on these batches of the host, or else on new ones."""
        for number in range(self.case.accumulation):
            batch = self.batch() if batches is None else batches[number]
            inputs = [tensor.to(self.device) for tensor in batch]
            with self.autocast():
                loss = self.model(*inputs) / self.case.accumulation
            mark("forward")
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            mark("backward")
        if self.case.clip:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), 1.0)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        mark("optimizer")
        self.optimizer.zero_grad(set_to_none=not self.case.keeps_gradients)
        mark("zero_grad")


GPT2 = GPTConfig(layers=12, width=768, heads=12)
GPT2_MEDIUM = GPTConfig(layers=24, width=1024, heads=16)
GPT2_XL = GPTConfig(layers=48, width=1600, heads=25)
LLAMA_1B = LlamaConfig(layers=16, width=2048, heads=32, groups=8, hidden=8192, vocabulary=32000)
LLAMA_3B = LlamaConfig(layers=28, width=3072, heads=24, groups=8, hidden=8192, vocabulary=32000)
MIXTURE = LlamaConfig(layers=8, width=768, heads=12, groups=4, hidden=2048, experts=8)
VIT_B = ViTConfig(layers=12, width=768, heads=12)
VIT_L = ViTConfig(layers=24, width=1024, heads=16)
BERT_BASE = BertConfig(layers=12, width=768, heads=12)
BERT_LARGE = BertConfig(layers=24, width=1024, heads=16)
T5_SMALL = T5Config(layers=8, width=512, heads=6, head=64, hidden=1024)
T5_BASE = T5Config(layers=12, width=768, heads=12, head=64, hidden=2048)
RESNET50 = ResNetConfig(depths=(3, 4, 6, 3))
RESNET152 = ResNetConfig(depths=(3, 8, 36, 3))

FP32, BF16 = Precision.FLOAT32, Precision.BFLOAT16
AUTO, SCALED = Precision.BFLOAT16_AUTOCAST, Precision.FLOAT16_SCALER
FOREACH, FUSED = Optimizer.ADAMW_FOREACH, Optimizer.ADAMW_FUSED
SINGLE, ADAFACTOR = Optimizer.ADAMW_SINGLE, Optimizer.ADAFACTOR
REENTRANT, NON_REENTRANT = Checkpointing.REENTRANT, Checkpointing.NON_REENTRANT

CASES: tuple[Case, ...] = (
    Case("gpt2-tiny", GPTConfig(2, 128, 4, vocabulary=1024), 8, 128, FP32, FOREACH),
    Case("gpt2-fp32", GPT2, 4, 1024, FP32, FOREACH),
    Case("gpt2-bf16-fused", GPT2, 8, 1024, AUTO, FUSED),
    Case("gpt2-fp16-dropout-clip", replace(GPT2, dropout=0.1), 8, 1024, SCALED, FOREACH, clip=True),
    Case("gpt2-accumulation-sgd", GPT2, 4, 1024, AUTO, Optimizer.SGD, accumulation=4),
    Case("gpt2-kept-gradients", GPT2, 4, 1024, AUTO, FOREACH, True, 2, keeps_gradients=True),
    Case("gpt2-reentrant-single", replace(GPT2, checkpointing=REENTRANT), 8, 1024, AUTO, SINGLE),
    Case(
        "gpt2-non-reentrant-dropout",
        replace(GPT2, checkpointing=NON_REENTRANT, dropout=0.1),
        8, 1024, AUTO, FUSED,
    ),
    Case("gpt2-flash", replace(GPT2, attention=Attention.FLASH), 8, 1024, AUTO, FUSED),
    Case("gpt2-efficient", replace(GPT2, attention=Attention.EFFICIENT), 8, 1024, SCALED, FUSED),
    Case(
        "gpt2-math-dropout",
        replace(GPT2, attention=Attention.MATH, dropout=0.1),
        4, 1024, AUTO, FOREACH,
    ),
    Case("gpt2-cudnn", replace(GPT2, attention=Attention.CUDNN), 8, 1024, BF16, FUSED),
    Case("gpt2-medium-adafactor", GPT2_MEDIUM, 8, 1024, AUTO, ADAFACTOR, clip=True),
    Case("gpt2-medium-few-tokens", GPT2_MEDIUM, 1, 256, FP32, FOREACH, clip=True),
    Case("gpt2-xl-fp32-single", GPT2_XL, 2, 1024, FP32, SINGLE, built_on_device=True),
    Case(
        "gpt2-xl-non-reentrant",
        replace(GPT2_XL, checkpointing=NON_REENTRANT),
        8, 1024, AUTO, FUSED, clip=True, built_on_device=True,
    ),
    Case("gpt2-xl-bf16", GPT2_XL, 8, 1024, BF16, FOREACH, built_on_device=True),
    Case("gpt2-xl-nearly-full", GPT2_XL, 16, 1024, AUTO, FUSED, built_on_device=True),
    Case("gpt2-xl-too-large", GPT2_XL, 24, 1024, AUTO, FUSED, built_on_device=True),
    Case("llama-1b-fp32-adafactor", LLAMA_1B, 1, 2048, FP32, ADAFACTOR, built_on_device=True),
    Case("llama-1b-bf16-fused", LLAMA_1B, 4, 2048, AUTO, FUSED, clip=True, built_on_device=True),
    Case(
        "llama-1b-bf16-reentrant",
        replace(LLAMA_1B, checkpointing=REENTRANT),
        8, 2048, BF16, FOREACH, built_on_device=True,
    ),
    Case("llama-3b-nearly-full", LLAMA_3B, 4, 3840, BF16, FUSED, built_on_device=True),
    Case("llama-3b-second-step", LLAMA_3B, 3, 4096, AUTO, FUSED, built_on_device=True),
    Case("mixture-fp32", MIXTURE, 4, 1024, FP32, FOREACH),
    Case("mixture-bf16", MIXTURE, 8, 1024, AUTO, FUSED, clip=True),
    Case("vit-b-bf16-dropout", replace(VIT_B, dropout=0.1), 64, 0, AUTO, FOREACH),
    Case(
        "vit-l-fp16-non-reentrant",
        replace(VIT_L, checkpointing=NON_REENTRANT),
        64, 0, SCALED, FUSED, clip=True,
    ),
    Case("vit-b-bf16-math", replace(VIT_B, attention=Attention.MATH), 64, 0, BF16, SINGLE),
    Case("bert-base-fp16", BERT_BASE, 16, 512, SCALED, FOREACH),
    Case("bert-large-accumulation", BERT_LARGE, 16, 512, AUTO, FUSED, True, 2),
    Case("t5-base-adafactor", T5_BASE, 8, 512, AUTO, ADAFACTOR),
    Case("t5-small-efficient", replace(T5_SMALL, attention=Attention.EFFICIENT), 8, 512, FP32,
         FOREACH),
    Case("resnet50-fp32", RESNET50, 64, 0, FP32, Optimizer.SGD),
    Case("resnet50-channels-last", RESNET50, 128, 0, AUTO, Optimizer.SGD, channels_last=True),
    Case("resnet152-fp16-channels-last", RESNET152, 64, 0, SCALED, FUSED, channels_last=True),
    Case("lstm-fp32-clip", LSTMConfig(2, 1024, 1024), 32, 256, FP32, Optimizer.SGD, clip=True),
    Case("lstm-fp16", LSTMConfig(3, 1024, 1536), 64, 256, SCALED, FUSED, clip=True,
         needs_gpu=True),
    Case("gpt2-bf16-compiled", GPT2, 8, 1024, AUTO, FUSED, compiled="default"),
    Case("gpt2-one-row", GPT2, 1, 256, AUTO, FUSED),
    Case("gpt2-one-row-compiled", GPT2, 1, 256, AUTO, FUSED, compiled="default"),
    Case("gpt2-one-row-reduce-overhead", GPT2, 1, 256, AUTO, FUSED, compiled="reduce-overhead"),
    Case(
        "llama-1b-bf16-compiled", LLAMA_1B, 4, 2048, AUTO, FUSED, clip=True, built_on_device=True,
        compiled="default",
    ),
    Case("vit-b-bf16-compiled", VIT_B, 64, 0, AUTO, FUSED, compiled="default"),
    Case("bert-base-compiled", BERT_BASE, 16, 512, AUTO, FUSED, compiled="default"),
    Case("t5-base-compiled", T5_BASE, 8, 512, AUTO, FUSED, compiled="default"),
    Case("resnet50-channels-last-compiled", RESNET50, 128, 0, AUTO, Optimizer.SGD,
         channels_last=True, compiled="default"),
)  # fmt: skip


def case_of(name: str) -> Case:
    """The case of this name. Raises ValueError when there is none."""
    for case in CASES:
        if case.name == name:
            return case
    raise ValueError(
        f"there is no case {name!r}; `python -m tests.truth.collect --list` names all of them"
    )
