"""What a rank costs to simulate: one GPU, 8, and 8,192, beside the same model without FSDP.

Targets: 8,192 ranks within 10 % of 8, and 8 less than twice the plain model on one virtual GPU.

    python -m benchmarks.cluster_ranks [--repeat 5] [--layers 16] [--json FILE]
"""

import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.measuring import (
    TALLY,
    against,
    interleaved,
    megabytes,
    middle,
    parser,
    seconds,
    show,
    spent_on,
    write,
)

SHARDED = Path(__file__).parents[1] / "examples" / "train_fsdp.py"
PLAIN = """\
import sys

sys.path.insert(0, {folder!r})

import torch
import torch.nn.functional as F
from train_fsdp import Decoder

model = Decoder(32768, 2048, 16, {layers}).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
for _ in range(3):
    ids = torch.randint(32768, (4, 2049), device="cuda")
    logits = model(ids[:, :-1])
    F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""
PLAINLY, FEW, MANY = "plain, on one GPU", "FSDP2, 8 ranks", "FSDP2, 8,192 ranks"
MOST_OF_PLAIN, MOST_OF_FEW = 2.0, 1.1


def main(argv: list[str] | None = None) -> int:
    options = parser(__doc__)
    options.set_defaults(repeat=5)
    options.add_argument("--layers", type=int, default=16, metavar="N")
    args = options.parse_args(argv)
    with tempfile.TemporaryDirectory() as name:
        plain = Path(name) / "plain.py"
        plain.write_text(PLAIN.format(folder=str(SHARDED.parent), layers=args.layers))
        sharded = [str(SHARDED), f"--layers={args.layers}"]
        scripts = {
            PLAINLY: ["H100-SXM", str(plain)],
            FEW: ["8xH100-SXM", *sharded],
            MANY: ["1024x8xH100-SXM", *sharded],
        }
        trace = ["-o", str(Path(name) / "run.tally"), "--quiet", "--gpu"]
        runs = interleaved(
            {
                name: lambda words=words: spent_on([TALLY, "run", *trace, *words])
                for name, words in scripts.items()
            },
            args.repeat,
        )
    figures = {name: middle(samples) for name, samples in runs.items()}
    show(
        f"`tally run` of two steps, {args.layers} layers (median of {args.repeat})",
        ("", "wall", "CPU", "peak RSS"),
        [
            (name, seconds(figure.wall_s), seconds(figure.cpu_s), megabytes(figure.peak_rss_bytes))
            for name, figure in figures.items()
        ],
    )
    of_plain = figures[FEW].cpu_s / figures[PLAINLY].cpu_s
    of_few = figures[MANY].cpu_s / figures[FEW].cpu_s
    print(
        f"\nCPU time, {FEW}: {of_plain:.2f} of the plain model's; "
        f"target {MOST_OF_PLAIN:g}: {against(of_plain, MOST_OF_PLAIN)}"
    )
    print(
        f"CPU time, {MANY}: {of_few:.2f} of that of 8; "
        f"target {MOST_OF_FEW:g}: {against(of_few, MOST_OF_FEW)}"
    )
    write(args.json, {
        "runs": {name: [asdict(run) for run in samples] for name, samples in runs.items()},
        "of_plain": of_plain, "target_of_plain": MOST_OF_PLAIN,
        "of_few": of_few, "target_of_few": MOST_OF_FEW,
    })  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
