"""`tally export`: a trained model in the format of transformers."""

import argparse

from torchtally.cli.arguments import Subparsers, positive_count
from torchtally.cli.output import emit

NAME = "export"
SUMMARY = "write a trained model for transformers"

EPILOG = """\
examples:
  tally export runs/byte_gpt --to hf --out models/byte_gpt
  tally export runs/byte_gpt --step 500 --to hf --out models/early --dtype bfloat16

In DIR afterwards: config.json, model.safetensors, and the tokenizer of the data as
tokenizer.json. AutoModelForCausalLM and AutoTokenizer of transformers load it, and
so does every tool that loads such folders; `model.weights = "DIR"` trains on from it.
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        NAME,
        help=SUMMARY,
        description="Write a model that `tally train` trained as a folder of transformers.",
        epilog=EPILOG,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a run (log.folder)")
    parser.add_argument("--to", choices=("hf",), required=True, help="hf: Hugging Face's format")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--step", type=positive_count, metavar="N", help="of this checkpoint; default: the newest"
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        help="of the weights; default: as they were trained",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the model in DIR")
    parser.set_defaults(command=command)


def command(args: argparse.Namespace) -> int:
    """Write the folder, and say what is in it."""
    from pathlib import Path

    from torchtally.errors import UsageError
    from torchtally.train.models.huggingface_config import CONFIG
    from torchtally.train.trained import export, load_trained
    from torchtally.units import format_count

    if Path(args.out, CONFIG).exists() and not args.overwrite:
        raise UsageError(f"{args.out}: already has a model. Use --overwrite to replace it.")
    trained = load_trained(args.run, args.step)
    names = export(trained, args.out, dtype=args.dtype)
    parameters = format_count(sum(value.numel() for value in trained.model.parameters()))
    kind = str(trained.model.embedding.weight.dtype).removeprefix("torch.")
    emit(f"{trained.source}: {parameters} parameters in {kind}\n{args.out}: {', '.join(names)}\n")
    if trained.tokenizer is None:
        emit("without a tokenizer: that of the data is unknown\n")
    return 0
