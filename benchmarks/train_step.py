"""A training step of our Transformer beside the same step of nanoGPT's model and transformers'.

Forward, loss, backward, `torch.optim.AdamW` as it comes, gradients set to None: a plain loop, the
same for all, in float32 on the CPU, in one process, steps in turn. A ratio is the median over pairs
of steps; below 1 ours is faster. Target: 1. The vocabulary decides much: "bytes" has 256, where the
head is nothing, "GPT-2" 50257, where it is most of a small model. Ours are measured with the logits
whole, as peers have them, and in chunks.

nanoGPT needs a checkout (github.com/karpathy/nanoGPT) in the variable NANOGPT, or is left out.

    [NANOGPT=DIR] OMP_NUM_THREADS=1 python -m benchmarks.train_step [--repeat 9] [--layers 4]
"""

import contextlib
import importlib.util
import io
import os
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measuring import against, interleaved, milliseconds, parser, show, write
from torchtally.train.models.config import Activation, TransformerConfig
from torchtally.train.models.huggingface_config import config_document
from torchtally.train.models.transformer import Transformer

TARGET_RATIO = 1.0
CHUNK_TOKENS = 128
BATCH, SEQUENCE = 4, 256
VOCABULARIES = {"bytes": 256, "GPT-2": 50257}

Loss = Callable[[Tensor, Tensor], Tensor]
"""Of ids and targets."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A model, and how its own code is asked for the loss."""

    model: nn.Module
    loss: Loss


def gpt2(layers: int, vocabulary: int, activation: Activation) -> TransformerConfig:
    return TransformerConfig(
        layers=layers, width=256, heads=4, kv_heads=4, ffn=1024, vocabulary=vocabulary,
        context=SEQUENCE, norm="layer", positions="learned", activation=activation, is_tied=True,
        has_bias=True,
    )  # fmt: skip


def llama(layers: int, vocabulary: int) -> TransformerConfig:
    return TransformerConfig(
        layers=layers, width=256, heads=4, kv_heads=2, ffn=704, vocabulary=vocabulary,
        context=SEQUENCE,
    )  # fmt: skip


def ours(config: TransformerConfig, chunk_tokens: int | None) -> Entrant:
    model = Transformer(config)
    return Entrant(model, lambda x, y: model.loss(x, y, chunk_tokens=chunk_tokens))


def of_transformers(config: TransformerConfig) -> Entrant:
    """By our own config.json. It shifts labels itself: the head has as many rows, one is unused."""
    from transformers import AutoConfig, AutoModelForCausalLM

    document = config_document(config, "float32")
    theirs = AutoConfig.for_model(document.pop("model_type"), **document, use_cache=False)
    model = AutoModelForCausalLM.from_config(theirs, attn_implementation="sdpa")
    return Entrant(model, lambda x, y: model(input_ids=x, labels=x).loss)


def of_nanogpt(config: TransformerConfig) -> Entrant:
    file = Path(os.environ["NANOGPT"]).resolve() / "model.py"
    spec = importlib.util.spec_from_file_location("nanogpt_model", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    shape = module.GPTConfig(
        block_size=config.context, vocab_size=config.vocabulary, n_layer=config.layers,
        n_head=config.heads, n_embd=config.width, dropout=0.0, bias=True,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        model = module.GPT(shape)
    return Entrant(model, lambda x, y: model(x, y)[1])


Peer = tuple[Callable[[int, int], TransformerConfig], Callable[[TransformerConfig], Entrant]]
"""From layers and vocabulary the shape, and from the shape the peer's own model of it."""
PEERS: dict[str, Peer] = {
    "nanoGPT": (partial(gpt2, activation="gelu"), of_nanogpt),
    "transformers GPT-2": (partial(gpt2, activation="gelu_tanh"), of_transformers),
    "transformers Llama": (llama, of_transformers),
}


def stepper(entrant: Entrant, ids: Tensor, targets: Tensor) -> Callable[[], tuple[float, float]]:
    """One training step: its wall and CPU seconds."""
    optimizer = torch.optim.AdamW(entrant.model.parameters(), lr=1e-4)

    def step() -> tuple[float, float]:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        entrant.loss(ids, targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - wall_s, time.process_time() - cpu_s

    return step


def compare(name: str, words: str, layers: int, repeat: int) -> dict[str, Any]:
    """One peer beside ours, on one vocabulary."""
    torch.manual_seed(0)
    vocabulary = VOCABULARIES[words]
    shape, make = PEERS[name]
    config = shape(layers, vocabulary)
    entrants = {
        "peer": make(config), "ours": ours(config, None), "ours, chunks": ours(config, CHUNK_TOKENS)
    }  # fmt: skip
    sizes = {
        sum(parameter.numel() for parameter in entrant.model.parameters())
        for entrant in entrants.values()
    }
    assert len(sizes) == 1, f"{name}: not the same shape: {sizes}"
    ids = torch.randint(vocabulary, (BATCH, SEQUENCE + 1))
    steps = {
        key: stepper(entrant, ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        for key, entrant in entrants.items()
    }
    interleaved(steps, 2)
    samples = interleaved(steps, repeat)
    ratios = {key: ratio(samples[key], samples["peer"]) for key in list(samples)[1:]}
    parameters = sizes.pop()
    return {"peer": name, "vocabulary": words, "parameters": parameters, "steps": samples,
            "ratio": ratios}  # fmt: skip


def ratio(mine: list[tuple[float, float]], peers: list[tuple[float, float]]) -> dict[str, float]:
    """Median of pairs, by the wall and by CPU time."""
    pairs = list(zip(mine, peers, strict=True))
    return {
        clock: median(a[at] / b[at] for a, b in pairs) for at, clock in enumerate(("wall", "cpu"))
    }


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--layers", type=int, default=4, metavar="N")
    options.add_argument("--vocabulary", action="append", choices=VOCABULARIES, help="only this")
    options.set_defaults(repeat=9)
    args = options.parse_args(argv)
    warnings.filterwarnings("ignore")
    comparisons = [
        compare(name, words, args.layers, args.repeat)
        for words in args.vocabulary or VOCABULARIES
        for name in PEERS
        if name != "nanoGPT" or "NANOGPT" in os.environ
    ]
    show(
        f"a step of {BATCH} x {SEQUENCE} tokens, {torch.get_num_threads()} threads, "
        f"median of {args.repeat} (CPU in brackets)",
        ("", "words", "parameters", "peer", "ours", "ours, chunks", "ratio", "ratio, chunks"),
        [row(compare) for compare in comparisons],
    )
    for key in ("ours", "ours, chunks"):
        worst = max(compare["ratio"][key]["wall"] for compare in comparisons)
        print(
            f"  target {TARGET_RATIO:g}: {key}, worst {worst:.3f}: {against(worst, TARGET_RATIO)}"
        )
    write(args.json, {"target_ratio": TARGET_RATIO, "pairs": comparisons})
    return 0


def row(record: dict[str, Any]) -> tuple[str, ...]:
    medians_s = (median(wall_s for wall_s, _ in record["steps"][key]) for key in record["steps"])
    ratios = (f"{of['wall']:.3f} ({of['cpu']:.3f})" for of in record["ratio"].values())
    return (record["peer"], record["vocabulary"], f"{record['parameters'] / 1e6:.1f}M",
            *(milliseconds(each_s) for each_s in medians_s), *ratios)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
