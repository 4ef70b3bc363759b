"""`tally plan --dpo` and `--grpo`: their options, and what they ask."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.arguments import positive_count
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from torchtally.plan.questions.preference import PreferenceRequest

OPTIONS = ("generations", "reference")
SHARED = ("prompt", "generate", "engine")
"""Options of inference that answers have, too."""
USUAL_PROMPT, USUAL_OUTPUT, USUAL_GENERATIONS = 512, 512, 8
"""TRL's GRPO generates 8 for each prompt."""
EXAMPLES = """\
  tally plan llama-3-8b --dpo --gpus 8xH100-SXM --prompt 512 --generate 512
  tally plan qwen-2.5-7b --grpo --gpus 8xH100-SXM --generate 1024 --engine vllm
  tally plan qwen-2.5-7b --grpo --lora 16 --gpus H100-SXM --reference
"""


def add_preference(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training on preferences (DPO) and rewards (GRPO)")
    method = group.add_mutually_exclusive_group()
    method.add_argument(
        "--dpo",
        action="store_true",
        help="DPO: pairs of answers and a reference model; lengths by --prompt and --generate",
    )
    method.add_argument(
        "--grpo",
        action="store_true",
        help="GRPO: answers generated in each step (--engine), with rewards",
    )
    group.add_argument(
        "--generations", type=positive_count, metavar="N", help="answers per prompt; default 8"
    )
    group.add_argument(
        "--reference", action="store_const", const=True,
        help="GRPO with a reference model (beta above 0)",
    )  # fmt: skip


def is_preference(args: argparse.Namespace) -> bool:
    """Whether DPO or GRPO is asked for."""
    return bool(args.dpo or args.grpo)


def preference_request(args: argparse.Namespace) -> "PreferenceRequest | None":
    """What is asked of them. Raises UsageError for their options without them."""
    given = [name for name in OPTIONS if getattr(args, name) is not None]
    if not args.grpo and given:
        raise UsageError(f"--{given[0]} is an option of GRPO: add --grpo.")
    if not is_preference(args):
        return None
    from torchtally.plan.inference.engines import engine
    from torchtally.plan.preference import Method
    from torchtally.plan.questions.preference import PreferenceRequest

    asked = [name for name in ("inference", "search", "layout", "torchtitan", "megatron",
             "deepspeed", "accelerate", "tokens_per_s", "flops", "compare", "largest", "tokens",
             "deadline", "budget", "sequence")
             if getattr(args, name)]  # fmt: skip
    if asked:
        option = asked[0].replace("_", "-")
        raise UsageError(f"--{'dpo' if args.dpo else 'grpo'} and --{option} cannot be combined.")
    return PreferenceRequest(
        method=Method.DPO if args.dpo else Method.GRPO,
        prompt=args.prompt or USUAL_PROMPT,
        output=args.generate or USUAL_OUTPUT,
        generations=args.generations or USUAL_GENERATIONS,
        has_reference=bool(args.dpo or args.reference),
        engine=engine(args.engine or "eager"),
    )
