"""What `torch.compile` gains, against pairs that others measured eagerly and compiled.

No GPU is needed, and none was measured here. The pairs are facts of public sources, in
`benchmarks/single_gpu/compiled.csv`; each is run by the procedure of its source, which is a
function here, and both sides are predicted from the data sheet alone. `first_gain` is what was
predicted when a pair was first run, the rest what is predicted now. timm's pairs need the package
(`pip install timm`), torchtune's too (`pip install torchtune`).

    python -m benchmarks.published_compiled            # the table of what is in the file
    python -m benchmarks.published_compiled --write    # predict every pair again, into the file
"""

import csv
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from benchmarks.measuring import parser
from benchmarks.single_gpu_tables import markdown

FILE = Path(__file__).with_name("single_gpu") / "compiled.csv"
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Pair:
    """One model's step, published eager and compiled, and what was predicted for both."""

    source: str
    chip: str
    model: str
    size: int
    """Tokens of a sequence, or pixels of an image's side."""
    eager_batch: int
    compiled_batch: int
    mode: str
    """Of `torch.compile`; empty: the default."""
    eager_ms: str
    """Of a step, as published; empty where the source has the gain alone."""
    compiled_ms: str
    gain: float
    """How many times as many samples a second are compiled, as published."""
    first_gain: str
    """As predicted when the pair was first run; empty where nobody wrote it down."""
    predicted_eager_ms: str
    predicted_compiled_ms: str

    @property
    def predicted_gain(self) -> float:
        """Of a pair that was run."""
        eager_ms = float(self.predicted_eager_ms) / self.eager_batch
        return eager_ms * self.compiled_batch / float(self.predicted_compiled_ms)

    @property
    def error(self) -> float:
        return self.predicted_gain / self.gain - 1

    @property
    def first_error(self) -> float | None:
        return float(self.first_gain) / self.gain - 1 if self.first_gain else None

    def batch(self, *, is_compiled: bool) -> int:
        return self.compiled_batch if is_compiled else self.eager_batch


def pairs() -> list[Pair]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return [
            Pair(**{**line, "size": int(line["size"]), "gain": float(line["gain"]),
                    "eager_batch": int(line["eager_batch"]),
                    "compiled_batch": int(line["compiled_batch"])})  # type: ignore[arg-type]
            for line in csv.DictReader(file)
        ]  # fmt: skip


def write_pairs(pairs_predicted: Iterable[Pair]) -> None:
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Pair)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, pairs_predicted))


# What each source ran -----------------------------------------------------------------------------


def timm(pair: Pair, *, is_compiled: bool) -> Step:
    """benchmark.py of timm: float16 autocast, cuDNN's trials, and `--fast-norm`.

    pytorch-image-models, results/benchmark-infer-amp-nchw-pt291-cu128-4090{,-dynamo}.csv @aa4b585,
    PyTorch 2.9.1. The tables do not say that norms are fast (in float16), but it follows from them:
    in float32 the norms of resnet50_gn alone make 639 ms of 266, and those of convnext_base 586 of
    487.
    """
    import timm
    import torch

    torch.backends.cudnn.benchmark = True
    timm.layers.set_fast_norm(True)
    with torch.device("cuda"):
        try:
            model = timm.create_model(pair.model, img_size=pair.size)
        except (TypeError, RuntimeError):  # a model for images of any size
            model = timm.create_model(pair.model)
    model = model.eval()
    run = torch.compile(model) if is_compiled else model
    batch = pair.batch(is_compiled=is_compiled)
    images = torch.randn(batch, 3, pair.size, pair.size, device="cuda")

    def step() -> None:
        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.float16):
            run(images)

    return step


def nanogpt(pair: Pair, *, is_compiled: bool) -> Step:
    """train.py of nanoGPT @5a725d90, "from ~250ms / iter to 135ms / iter".

    PyTorch 2.0's nightly build of December 2022: AdamW went tensor by tensor (foreach became the
    default in January 2023, pytorch/pytorch pull request 92306), and inductor padded no product
    (torch/_inductor/config.py of 2.0: shape_padding is off). The model wrote attention out and had
    50,257 words of its own for input and output; TorchScript fused its GELU into one kernel. So
    does transformers' model here. The batch of 8 is the file's; the README names none.
    """
    import torch
    import transformers

    config = transformers.GPT2Config(
        attn_implementation="eager", activation_function="gelu_pytorch_tanh", use_cache=False,
        tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("cuda"):
        model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=1e-2, foreach=False)
    run: Any = torch.compile(model, options={"shape_padding": False}) if is_compiled else model
    words = config.vocab_size

    def step() -> None:
        tokens = torch.randint(0, words, (pair.eager_batch, pair.size), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = run(tokens).logits
            loss = torch.nn.functional.cross_entropy(logits.view(-1, words), tokens.view(-1))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


DOCUMENT_TOKENS = 256
"""Of a sequence that torchtune packs with others: assumed, its README does not say. Flex attention
skips what other documents hold."""


def torchtune(pair: Pair, *, is_compiled: bool) -> Step:
    """recipes/full_finetune_single_device.py, packed: README, "Optimization flags" @bd2a0fc."""
    import torch
    from torchtune import training
    from torchtune.models import llama3_2
    from torchtune.modules.attention_utils import packed_block_causal_mask

    with training.set_default_dtype(torch.bfloat16), torch.device("cuda"):
        model = getattr(llama3_2, pair.model)()
    loss_of: Any = torch.nn.CrossEntropyLoss()
    if is_compiled:
        training.compile_model(model)
        loss_of = training.compile_loss(loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    rows, length = pair.eager_batch, pair.size
    documents = torch.full((length // DOCUMENT_TOKENS,), DOCUMENT_TOKENS)

    def step() -> None:
        tokens = torch.randint(0, 128000, (rows, length)).to("cuda")
        places = (torch.arange(length) % DOCUMENT_TOKENS).repeat(rows, 1).to("cuda")
        mask = packed_block_causal_mask([documents] * rows)
        ends = torch.full((rows, 1), -100, device="cuda")
        labels = torch.hstack((tokens[:, 1:], ends))
        count = (labels != -100).sum()
        logits = model(tokens, mask=mask, input_pos=places)
        loss = loss_of(logits.reshape(-1, logits.size(-1)), labels.reshape(-1)) * count
        del logits
        loss.backward()
        training.scale_grads_(model.parameters(), 1 / count)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def dashboard(pair: Pair, *, is_compiled: bool) -> Step:
    """benchmarks/dynamo/torchbench.py of PyTorch, training by AMP: pytorch/pytorch issue 96191.

    The mean of the logits is the loss, and SGD follows; March 2023, on an A100 of 40 GB (believed:
    the issue names none). The models are pytorch/benchmark's: configurations of transformers.
    """
    import torch
    import transformers

    if pair.model == "hf_Albert":
        config: Any = transformers.AlbertConfig(  # albert-base-v2
            hidden_size=768, num_attention_heads=12, intermediate_size=3072,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        kind: Any = transformers.AlbertForMaskedLM
    else:
        config = transformers.T5Config(  # t5-large
            d_model=1024,
            d_ff=4096,
            num_layers=24,
            num_heads=16,
            use_cache=False,
            decoder_start_token_id=0,
        )
        kind = transformers.T5ForConditionalGeneration
    with torch.device("cuda"):
        model = kind._from_config(config, attn_implementation="eager").train()
    run: Any = torch.compile(model, mode=pair.mode or None) if is_compiled else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ids = torch.randint(0, config.vocab_size, (pair.eager_batch, pair.size), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            logits = run(input_ids=ids, labels=ids).logits
            loss = logits.sum() / logits.numel()
        loss.backward()
        optimizer.step()

    return step


SOURCES: dict[str, Callable[..., Step]] = {
    "timm": timm,
    "nanoGPT": nanogpt,
    "torchtune": torchtune,
    "dashboard": dashboard,
}


# Predictions --------------------------------------------------------------------------------------

STEPS_OF_MODES = {"reduce-overhead": 4}
"""The last of them replays what the one before captured. Of others the second is like all later."""


def milliseconds(pair: Pair, *, is_compiled: bool) -> str:
    """Of a step in the steady state, by the events that a script would time it with."""
    import torch

    import torchtally

    times_ms: list[float] = []

    def run() -> None:
        step = SOURCES[pair.source](pair, is_compiled=is_compiled)
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for _ in range(STEPS_OF_MODES.get(pair.mode, 2) if is_compiled else 2):
            before.record()
            step()
            after.record()
            torch.cuda.synchronize()
        times_ms.append(before.elapsed_time(after))

    with patch.dict(torch.backends.__dict__):
        torchtally.run(run, gpu=pair.chip, memory_is_limited=False)
    return f"{times_ms[0]:.5g}"


def predict(pair: Pair) -> Pair:
    pair = replace(
        pair,
        predicted_eager_ms=milliseconds(pair, is_compiled=False),
        predicted_compiled_ms=milliseconds(pair, is_compiled=True),
    )
    return pair if pair.first_gain else replace(pair, first_gain=f"{pair.predicted_gain:.3f}")


def predicted(rows: Iterable[Pair], only: str, *, is_missing_alone: bool) -> list[Pair]:
    done = []
    for pair in rows:
        is_named = only in f"{pair.source} {pair.chip} {pair.model} {pair.mode}"
        if is_named and not (is_missing_alone and pair.predicted_compiled_ms):
            pair = predict(pair)
            print(pair.model, pair.mode, f"{pair.predicted_gain:.3f} of {pair.gain}", flush=True)
        done.append(pair)
    return done


# The table ----------------------------------------------------------------------------------------

CELLS = (
    "pair",
    "chip",
    "gain, published",
    "predicted",
    "error",
    "first",
    "ms, published",
    "predicted",
)


def table() -> str:
    """For docs/compile.md: every pair that was run, and the median of all."""
    predicted_pairs = [pair for pair in pairs() if pair.predicted_compiled_ms]
    return markdown(CELLS, map(cells, predicted_pairs)) + f"\n{summary(predicted_pairs)}"


def cells(pair: Pair) -> tuple[str, ...]:
    name = f"{pair.model}, {pair.mode}" if pair.mode else pair.model
    first = pair.first_error
    published_ms = (pair.eager_ms, pair.compiled_ms)
    predicted_ms = (pair.predicted_eager_ms, pair.predicted_compiled_ms)
    return (
        name,
        pair.chip,
        f"{pair.gain:.2f}",
        f"{pair.predicted_gain:.2f}",
        f"{pair.error:+.1%}".replace("%", " %"),
        "" if first is None else f"{first:+.1%}".replace("%", " %"),
        ", ".join(published_ms) if all(published_ms) else "",
        ", ".join(predicted_ms),
    )


def summary(rows: Iterable[Pair]) -> str:
    errors = [abs(pair.error) for pair in rows]
    return f"The error of the gain is {100 * median(errors):.1f} % in the median of {len(errors)}."


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.add_argument("--write", action="store_true", help="predict again, into the file")
    options.add_argument("--only", default="", help="a part of the pairs' names")
    options.add_argument("--missing", action="store_true", help="pairs without a prediction alone")
    args = options.parse_args(argv)
    if args.write:
        write_pairs(predicted(pairs(), args.only, is_missing_alone=args.missing))
    print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
