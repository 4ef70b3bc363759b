"""What `torch.compile` gains, against pairs that others measured eagerly and compiled.

No GPU is needed, and none was measured here. Each pair is one model on one chip with the batch and
precision that its source names; images are classified by timm's own models (pip install timm).
Nothing is fitted to them: each side is predicted from the data sheet alone.

    python -m benchmarks.published_compiled [--only NAME]
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.measuring import parser, write

TIMM = (
    "pytorch-image-models results/benchmark-infer-amp-nchw-pt291-cu128-4090{,-dynamo}.csv: "
    "images/s, batch 1024, float16 autocast"
)
NANOGPT = (
    "nanoGPT README: ms of a step, PyTorch 2.0 of December 2022, attention written out; the "
    "compiler has learnt much since"
)
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Pair:
    label: str
    chip: str
    step: Callable[[bool], Step]
    """Makes a step, compiled or not."""
    eager_s: float
    compiled_s: float
    """Of one step, as published."""
    source: str

    @property
    def gain(self) -> float:
        return self.eager_s / self.compiled_s


@dataclass(frozen=True, slots=True)
class Predicted:
    pair: Pair
    eager_s: float
    compiled_s: float

    @property
    def gain(self) -> float:
        return self.eager_s / self.compiled_s

    @property
    def error(self) -> float:
        return self.gain / self.pair.gain - 1


def inference(name: str) -> Callable[[bool], Step]:
    """Of images, in batches of 1024."""

    def make(is_compiled: bool) -> Step:
        import timm
        import torch

        with torch.device("cuda"):
            model = timm.create_model(name).eval()
        run = torch.compile(model) if is_compiled else model
        images = torch.randn(1024, 3, 224, 224, device="cuda")

        def step() -> None:
            with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
                run(images)

        return step

    return make


def gpt2(is_compiled: bool) -> Step:
    """GPT-2 124M, 12 sequences of 1024, bfloat16 autocast, AdamW."""
    import torch
    import transformers

    config = transformers.GPT2Config(
        vocab_size=50304, attn_implementation="eager",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    with torch.device("cuda"):
        model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters())
    run: Any = torch.compile(model) if is_compiled else model

    def step() -> None:
        tokens = torch.randint(0, 50304, (12, 1024), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = run(tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


PAIRS = (
    *(
        Pair(name, "RTX-4090", inference(name), 1024 / eager, 1024 / compiled, TIMM)
        for name, eager, compiled in (
            ("resnet50", 4302.84, 8039.05),
            ("vit_base_patch16_224", 2992.79, 3375.59),
            ("convnext_base", 2101.67, 2688.67),
            ("efficientnet_b0", 8794.71, 10785.82),
        )
    ),
    Pair("GPT-2 124M, training", "A100-SXM", gpt2, 0.250, 0.135, NANOGPT),
)  # fmt: skip


def seconds(pair: Pair, *, is_compiled: bool) -> float:
    """Of a step in the steady state, by the events that a script would time it with."""
    import torch

    import torchtally

    found: list[float] = []

    def run() -> None:
        step = pair.step(is_compiled)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(2):
            step()
        before.record()
        step()
        after.record()
        after.synchronize()
        found.append(before.elapsed_time(after) / 1e3)

    torchtally.run(run, gpu=pair.chip)
    return found[0]


def predict(pair: Pair) -> Predicted:
    return Predicted(pair, seconds(pair, is_compiled=False), seconds(pair, is_compiled=True))


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--only", help="the pair of this name")
    args = options.parse_args(argv)
    found = [predict(pair) for pair in PAIRS if args.only in (None, pair.label)]
    rows = [
        {
            "model": each.pair.label,
            "gpu": each.pair.chip,
            "published_gain": round(each.pair.gain, 3),
            "predicted_gain": round(each.gain, 3),
            "error": round(each.error, 3),
            "published_ms": [round(1e3 * s, 1) for s in (each.pair.eager_s, each.pair.compiled_s)],
            "predicted_ms": [round(1e3 * s, 1) for s in (each.eager_s, each.compiled_s)],
        }
        for each in found
    ]
    middle = median(abs(each.error) for each in found)
    for row in rows:
        print(row)
    print(f"median error of the gain: {middle:.1%}")
    write(args.json, {"pairs": rows, "median_error": middle})
    return 0


if __name__ == "__main__":
    sys.exit(main())
