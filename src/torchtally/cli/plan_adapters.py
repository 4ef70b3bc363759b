"""`tally plan --lora`: its options, and what they ask."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.arguments import fraction, positive_count
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torchtally.plan.questions import Answer, Request
    from torchtally.plan.questions.adapter_request import AdapterRequest

OPTIONS = ("lora", "lora_targets", "lora_dropout", "dora")
EXAMPLES = """\
  tally plan qwen-2.5-14b --lora 16 --weights nf4 --gpus RTX-4090 --sequence 2048
  tally plan llama-3-8b --lora 64 --lora-targets q,v --gpus RTX-4090 \\
      --largest sequence --recompute full
"""


def add_adapters(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("fine-tuning by low-rank adapters (LoRA, QLoRA, DoRA)")
    group.add_argument(
        "--lora",
        type=positive_count,
        metavar="RANK",
        help="rank of the adapters; weights are frozen, in 16 bits or as --weights says (nf4: "
        "QLoRA)",
    )
    group.add_argument(
        "--lora-targets",
        metavar="NAMES",
        help="matrices with an adapter: q,v or q_proj,v_proj; default all-linear",
    )
    group.add_argument(
        "--lora-dropout",
        type=fraction,
        metavar="SHARE",
        help="dropout of the adapters' inputs; default 0",
    )
    group.add_argument(
        "--dora", action="store_const", const=True, help="DoRA: a trained magnitude per output"
    )


def adapter_request(args: argparse.Namespace) -> "AdapterRequest | None":
    """What is asked of adapters. Raises UsageError for their options without --lora."""
    if args.lora is None:
        given = [name for name in OPTIONS if getattr(args, name) is not None]
        if given:
            option = given[0].replace("_", "-")
            raise UsageError(f"--{option} is an option of adapters: add --lora 16.")
        return None
    from torchtally.plan.adapters import ALL
    from torchtally.plan.inference.formats import weight_format
    from torchtally.plan.questions.adapter_request import AdapterRequest

    if args.inference:
        raise UsageError("--lora trains and --inference does not: give one at a time.")
    words = (args.lora_targets or ALL).split(",")
    targets = tuple(word.strip() for word in words if word.strip())
    if not targets:
        raise UsageError("--lora-targets: no matrices given. These work: q,v or all-linear.")
    return AdapterRequest(
        rank=args.lora,
        targets=targets,
        dropout=args.lora_dropout or 0.0,
        has_magnitude=bool(args.dora),
        base=None if args.weights is None else weight_format(args.weights),
    )


def adapter_question(args: argparse.Namespace) -> "Callable[[Request], Answer]":
    """Which question about adapters the arguments ask."""
    from torchtally.plan.questions.fine_tuning import TUNED

    asked = [name for name in ("search", "layout", "torchtitan", "megatron", "deepspeed",
             "accelerate", "tokens_per_s", "flops", "compare")
             if getattr(args, name)]  # fmt: skip
    if asked or args.largest == "model":
        option = "largest model" if not asked else asked[0].replace("_", "-")
        raise UsageError(f"--lora and --{option} cannot be combined.")
    return TUNED[args.largest]
