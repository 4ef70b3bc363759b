"""Whole models on one GPU: seconds and bytes that others measured, beside those predicted.

The rows are facts of public repositories, in `benchmarks/single_gpu/models.csv`, chosen at random
before anything was predicted (benchmarks/README.md says how). Each is run by the procedure of its
source, which is a function here; `first` is what was predicted when the row was first seen, before
anything was learnt of it, `predicted` what is predicted now. Models of timm and litgpt need these
packages (`pip install timm litgpt`).

    python -m benchmarks.published_models            # the table of what is in the file
    python -m benchmarks.published_models --write    # predict every row again, into the file
"""

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.deep_learning_examples import deep_learning_example, waiting_s
from benchmarks.measuring import parser

FOLDER = Path(__file__).with_name("single_gpu")
FILES = ("models", "half_precision")
"""The first sample, and one of trainings on tensor cores alone, drawn later."""
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure, and what was predicted for it."""

    source: str
    chip: str
    model: str
    run: str
    """What is timed: "forward", "forward backward", "step", or a way to fine-tune."""
    batch: int
    size: int
    """Tokens of a sequence, or pixels of an image's side."""
    options: str
    """Words, with blanks between."""
    quantity: str
    """"ms" of the run, "allocated_gb", "nvidia_smi_mib", or "fits": yes or no."""
    measured: str
    first: str
    predicted: str
    """A number; of "fits" the verdict; of nvidia-smi's the range, "low..high"."""

    @property
    def workload(self) -> tuple[object, ...]:
        """What is run: rows of one workload share its trace."""
        return self.source, self.chip, self.model, self.run, self.batch, self.size, self.options

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None of a verdict and of a range."""
        return None if self.quantity in ("fits", "nvidia_smi_mib") else self.over(self.predicted)

    @property
    def first_ratio(self) -> float | None:
        return None if self.quantity == "fits" else self.over(self.first)

    def over(self, predicted: str) -> float | None:
        try:
            return float(predicted) / float(self.measured)
        except ValueError:
            return None

    @property
    def is_compiled(self) -> bool:
        return "compiled" in self.options.split()


def rows(name: str) -> list[Row]:
    with (FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [
            Row(**{**line, "batch": int(line["batch"]), "size": int(line["size"])})  # type: ignore[arg-type]
            for line in csv.DictReader(file)
        ]


def write_rows(name: str, rows_predicted: Iterable[Row]) -> None:
    with (FOLDER / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows_predicted))


# What each source ran -----------------------------------------------------------------------------

Step = Callable[[], object]
"""What is repeated, and timed by events."""


NEUSIGHT = {
    "bert_large": ("bert", {
        "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "intermediate_size": 4096,
    }),
    "gpt2_large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20, "n_positions": 1024}),
    "gpt3_xl": ("gpt2", {"n_embd": 3072, "n_layer": 24, "n_head": 24, "n_positions": 2048}),
    "gpt3_27": ("gpt2", {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048}),
    "opt_13": ("opt", {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192,
        "max_position_embeddings": 2048,
    }),
}  # fmt: skip
"""scripts/asplos/data/DLmodel_configs of the repository."""


def neusight(row: Row) -> Step:
    """neusight/Tracing/trace.py, measure_e2e: float32, eager attention, no optimizer."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        AutoModelForPreTraining,
        AutoModelForSequenceClassification,
    )

    family, sizes = NEUSIGHT[row.model]
    config = AutoConfig.for_model(family, **sizes)
    is_training = row.run == "forward backward"
    kind: Any = AutoModelForCausalLM
    if family == "bert":
        kind = AutoModelForPreTraining if is_training else AutoModelForSequenceClassification
    with torch.device("meta"):
        model = kind.from_config(config, attn_implementation="eager")
    model = model.to_empty(device="cuda").train(is_training)
    ids = torch.ones(row.batch, row.size, dtype=torch.int64, device="cuda")

    def step() -> None:
        if not is_training:
            with torch.no_grad():
                model(ids)
            return
        result = model(ids)
        logits = result["prediction_logits"] if family == "bert" else result["logits"]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()

    return step


def timm_model(row: Row, *, channels_last: bool = False) -> Any:
    import timm
    import torch

    torch.backends.cudnn.benchmark = True
    timm.layers.set_fast_norm("fast_norm" in row.options.split())
    with torch.device("meta"):
        try:
            model = timm.create_model(row.model, img_size=row.size)
        except (TypeError, RuntimeError):  # a model for images of any size
            model = timm.create_model(row.model)
    model = model.to_empty(device="cuda")
    return model.to(memory_format=torch.channels_last) if channels_last else model


def timm(row: Row) -> Step:
    """benchmark.py of timm: float16 autocast without a scaler, SGD, images made once."""
    import torch
    from timm.optim import create_optimizer_v2

    is_training, channels_last = row.run == "step", "channels_last" in row.options.split()
    model = timm_model(row, channels_last=channels_last).train(is_training)
    images = torch.randn(row.batch, 3, row.size, row.size, device="cuda")
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    run = torch.compile(model) if row.is_compiled else model
    if not is_training:

        def infer() -> None:
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                run(images)

        return infer
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4)

    def train() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            output = run(images)
            output = output[0] if isinstance(output, tuple) else output
            classes = torch.empty((row.batch,), device="cuda", dtype=torch.long).random_(1000)
            torch.nn.functional.cross_entropy(output, classes).backward()
        optimizer.step()

    return train


def gpumemnet(row: Row) -> Step:
    """train.py of timm by its defaults: float32 with TF32, SGD, label smoothing."""
    import torch
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2

    torch.backends.cuda.matmul.allow_tf32 = True
    model = timm_model(row).train()
    optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-4, momentum=0.9)
    loss_of = LabelSmoothingCrossEntropy(0.1).cuda()

    def step() -> None:
        size = model.default_cfg.get("input_size", (3, 224, 224))
        images = torch.empty((row.batch, *size), dtype=torch.uint8).to("cuda", non_blocking=True)
        classes = torch.zeros(row.batch, dtype=torch.long, device="cuda")
        output = model(images.float())
        output = output[0] if isinstance(output, tuple) else output
        optimizer.zero_grad()
        loss_of(output, classes).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def litgpt(row: Row) -> Step:
    """finetune/lora.py and its like: bfloat16 weights, the longest sequence of the data."""
    import importlib

    import torch
    from litgpt.utils import chunked_cross_entropy

    variant = importlib.import_module(f"litgpt.{row.run}")
    given: dict[str, Any] = {}
    if row.run == "lora":
        given = {
            "lora_r": 8, "lora_alpha": 16, "lora_dropout": 0.05, "lora_query": True,
            "lora_value": True,
        }  # fmt: skip
    config = variant.Config.from_name(row.model, **given)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = variant.GPT(config)
        getattr(variant, f"mark_only_{row.run}_as_trainable")(model)
        model = model.to_empty(device="cuda").train()
        model.max_seq_length = row.size
    finally:
        torch.set_default_dtype(torch.float32)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, weight_decay=0.01)

    def step() -> None:
        ids, labels = (
            torch.zeros(row.batch, row.size, dtype=torch.long).to("cuda") for _ in range(2)
        )
        # Fabric returns the outputs of bf16-true in float32 (plugins/precision/half.py).
        logits = [part.float() for part in model(ids, lm_head_chunk_size=128)]
        logits[-1] = logits[-1][..., :-1, :]
        chunked_cross_entropy(logits, labels[..., 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def transformers(row: Row) -> Step:
    """docs/source/en/perf_train_gpu_one.mdx: Trainer's loop, optimizers tensor by tensor.

    Its PyTorch 1.10 kept the input of a softmax for the backward pass, too.
    """
    import torch
    from transformers import BertConfig, BertForSequenceClassification
    from transformers.optimization import Adafactor

    words = row.options.split()
    accumulation = next(int(word.partition("=")[2]) for word in words if "accumulation" in word)
    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    with torch.device("meta"):
        model = BertForSequenceClassification._from_config(config, attn_implementation="eager")
    model = model.to_empty(device="cuda").train()
    if "checkpointing" in words:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    if "adafactor" in words:
        optimizer = Adafactor(
            model.parameters(), lr=5e-5, scale_parameter=False, relative_step=False
        )
    is_half = "float16" in words
    scaler = torch.amp.GradScaler("cuda", enabled=is_half)
    softmax = torch.nn.functional.softmax

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, scores: Any, result: Any) -> Any:
            context.save_for_backward(scores)
            return result.view_as(result)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:  # type: ignore[override]
            return None, gradient

    def keeping_its_input(scores: Any, *arguments: Any, **options: Any) -> Any:
        scores = scores.float() if is_half else scores
        return Kept.apply(scores, softmax(scores, *arguments, **options))

    def step() -> None:
        for _ in range(accumulation):
            ids = torch.randint(100, 30000, (row.batch, row.size)).to("cuda")
            labels = torch.zeros(row.batch, dtype=torch.long).to("cuda")
            with (
                torch.autocast("cuda", dtype=torch.float16, enabled=is_half),
                patch.object(torch.nn.functional, "softmax", keeping_its_input),
            ):
                loss = model(input_ids=ids, labels=labels).loss
            scaler.scale(loss / accumulation).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)

    return step


WORKLOADS: dict[str, Callable[[Row], Step]] = {
    "neusight": neusight,
    "timm": timm,
    "gpumemnet": gpumemnet,
    "litgpt": litgpt,
    "transformers": transformers,
    "lambda": deep_learning_example,
}


# Predictions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one workload is predicted to take."""

    ms: float
    allocated_bytes: int
    low_bytes: int
    high_bytes: int
    """Of the device, by nvidia-smi."""
    claim: str
    """As `torchtally.views.ranges.MemoryRange.claim`."""

    def cell(self, quantity: str) -> str:
        """As the file has it."""
        return {
            "ms": f"{self.ms:.5g}",
            "allocated_gb": f"{self.allocated_bytes / 1e9:.4g}",
            "nvidia_smi_mib": f"{self.low_bytes / MIB:.0f}..{self.high_bytes / MIB:.0f}",
            "fits": self.claim,
        }[quantity]


@contextmanager
def cublas_12() -> Iterator[None]:
    """Hopper's products by the tiles that cuBLAS 12.4's kernels have in their names
    (sm90_xmma_gemm_..._tilesize128x128 in profiles of PyTorch 2.6, `benchmarks/real_traces.py`).
    """
    from torchtally.timing.roofline import products

    products.product_s.cache_clear()
    try:
        with patch.object(products, "HOPPER_TILE_SHARES", products.MATRIX_TILE_SHARES):
            yield
    finally:
        products.product_s.cache_clear()


EIGHT_BYTES_PER_S = 25e9
"""What one of Hopper's multiprocessors streams while each of its threads loads 8 bytes at a time:
at full occupancy 24.0 GB/s with one load for a store and 26.8 with two, which is 3.2 and 3.5 TB/s
of a H200's 4.8 (te42kyfo/gpu-benches @1c36d50, gpu-stream/h200.txt)."""


@contextmanager
def vectors_of_8_bytes() -> Iterator[None]:
    """Elementwise kernels as before PyTorch 2.7, which loads 16 bytes at a time on Hopper and later
    (pytorch/pytorch pull request 145746): before, four numbers of 16 bits.
    """
    from torchtally.timing.roofline import streaming

    memory_s = streaming.memory_s

    def limited_s(call: Any, kind: Any, traffic: int, chip: Any) -> float:
        taken_s = memory_s(call, kind, traffic, chip)
        spec = streaming.heaviest(call)
        if kind not in streaming.CACHED or spec is None or spec.itemsize_bytes != 2:
            return taken_s
        return max(taken_s, traffic / (EIGHT_BYTES_PER_S * chip.multiprocessors))

    with patch.object(streaming, "memory_s", limited_s):
        yield


@contextmanager
def software_of(row: Row) -> Iterator[None]:
    """What the rows were measured with, where it matters.

    Builds for CUDA 12 and older, whose launches on lists have room for 320 blocks. PyTorch 1.12 and
    cuDNN 8.3, which trained timm's models: no scaled_dot_product_attention, and every filter's
    operands brought into channels last (`roofline/conversions.py`). Lambda's Hopper ran cuBLAS 12
    of 2023, whose kernels for it had the tiles of other chips, and cuDNN 8, of which the same is
    taken as of 8.3: with filters of one position as cuDNN 9 reads them, ResNet-50 would take H100s
    0.81 and 0.84 of the measured times, and takes 1.02 and 1.05. Its PyTorch was 1.13 to 2.5.
    """
    from torchtally.timing.roofline import lists

    with patch.object(lists, "LIST_LIMITS", lists.OF_4_KB), libraries_of(row):
        yield


@contextmanager
def libraries_of(row: Row) -> Iterator[None]:
    from torchtally.timing.roofline import convolutions

    all_converted = patch.object(convolutions, "READS_CHANNELS_FIRST", frozenset())
    if row.source == "lambda" and row.chip.startswith(("H100", "H200", "GH200")):
        with cublas_12(), vectors_of_8_bytes(), all_converted:
            yield
        return
    if row.source != "timm" or row.run != "step":
        yield
        return
    from timm.layers import set_fused_attn, use_fused_attn

    before = use_fused_attn()
    set_fused_attn(False)
    try:
        with all_converted:
            yield
    finally:
        set_fused_attn(bool(before))


def predict(row: Row, keep: Path | None = None) -> Prediction:
    """Of the second repetition, with what the device waits for its loader; memory of both."""
    import torch

    import torchtally
    from torchtally.ledger import account
    from torchtally.timing.roofline import Roofline
    from torchtally.views.ranges import memory_range

    seconds: list[float] = []

    def run() -> None:
        step = WORKLOADS[row.source](row)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(1 if row.source == "litgpt" else 2):
            before.record()
            step()
            after.record()
            torch.cuda.synchronize()
        seconds.append(before.elapsed_time(after))
        seconds.append(torch.cuda.max_memory_allocated())

    with software_of(row):
        trace = torchtally.run(run, gpu=row.chip, memory_is_limited=False)
    if keep is not None:
        trace.save(keep)
    taken = memory_range(account(trace, roofline=Roofline(trace_chip(row.chip))))
    ms, allocated = seconds
    ms += 1e3 * waiting_s(row)
    return Prediction(ms, int(allocated), taken.low_bytes, taken.high_bytes, taken.claim)


def trace_chip(name: str) -> Any:
    from torchtally.chips import chip

    return chip(name)


def predicted(
    known: Sequence[Row],
    only: str = "",
    keep: Path | None = None,
    *,
    is_missing_alone: bool = False,
) -> list[Row]:
    """Every row whose chip, source or model is named, predicted again; one line for each."""
    predictions: dict[tuple[object, ...], Prediction] = {}
    done = []
    for number, row in enumerate(known):
        named = f"{row.source} {row.chip} {row.model} {row.run} {row.options} {row.quantity}"
        if only not in named or (is_missing_alone and row.predicted):
            done.append(row)
            continue
        if row.workload not in predictions:
            predictions[row.workload] = predict(row, keep and keep / f"{number}.tally")
        row = replace(row, predicted=predictions[row.workload].cell(row.quantity))
        ratio = "" if row.ratio is None else f"{row.ratio:.3f}"
        print(*row.workload, row.quantity, row.measured, row.predicted, ratio, flush=True)
        done.append(row)
    return done


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="predict again, into the file")
    options.add_argument("--only", default="", help="words of the rows to predict again")
    options.add_argument("--missing", action="store_true", help="rows without a prediction alone")
    options.add_argument("--file", default="", choices=("", *FILES), help="the one to write")
    options.add_argument("--keep", type=Path, help="a folder for the traces")
    args = options.parse_args(argv)
    for name in FILES:
        if args.write and args.file in ("", name):
            write_rows(
                name, predicted(rows(name), args.only, args.keep, is_missing_alone=args.missing)
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
