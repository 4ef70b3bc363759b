"""`tally plan --inference`: its options, and what they ask."""

import argparse
from typing import TYPE_CHECKING

from torchtally.cli.arguments import fraction, one_of, positive_count, sequence_length
from torchtally.cli.plan_preference import SHARED as ANSWERS
from torchtally.cli.plan_preference import is_preference
from torchtally.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torchtally.plan.architecture.model import Model
    from torchtally.plan.questions import Answer, Request
    from torchtally.plan.questions.inference_request import InferenceRequest

OPTIONS = ("prompt", "generate", "weights", "kv_cache", "kv_block", "engine", "draft", "guesses",
           "acceptance")  # fmt: skip
"""Of inference alone."""
TRAINING = {
    "--search": "search", "--torchtitan": "torchtitan", "--megatron": "megatron",
    "--deepspeed": "deepspeed", "--accelerate": "accelerate", "--tokens-per-s": "tokens_per_s",
    "--flops": "flops", "--page": "page",
}  # fmt: skip
"""Questions about trainings, and where they are."""

EXAMPLES = """\
  tally plan llama-3.1-8b --inference --context 128K          weights, KV cache
  tally plan llama-3-70b --inference --gpus 4xH100-SXM --weights fp8
  tally plan llama-3-70b --inference --gpus 4xH100-SXM --largest batch
  tally plan deepseek-v3 --inference --gpus 4x8xH100-SXM --layout "dp 32, ep 32"
  tally plan llama-3-8b --inference --gpus RTX-4090 --weights q4_K_M \\
      --engine llama.cpp
  tally plan llama-3-70b --inference --gpus 2xH100-SXM --draft llama-3-8b
"""


def add_inference(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("inference")
    group.add_argument(
        "--inference", action="store_true", help="plan inference instead of training"
    )
    group.add_argument(
        "--prompt", type=sequence_length, metavar="N", help="tokens per prompt; default 1024"
    )
    group.add_argument(
        "--generate",
        type=sequence_length,
        metavar="N",
        help="tokens generated per prompt; default 256",
    )
    group.add_argument(
        "--weights",
        type=one_of(weight_names),
        metavar="FORMAT",
        help=(
            "bf16, fp8, int8, int4, awq, gptq, nvfp4, mxfp4, q4_K_M, ... (all below); default: "
            "the model's"
        ),
    )
    group.add_argument(
        "--kv-cache",
        type=one_of(cache_names),
        metavar="FORMAT",
        help="format of keys and values: bf16 (default), fp8, int8, int4, nvfp4, q8_0, q4_0",
    )
    group.add_argument(
        "--kv-block",
        type=positive_count,
        metavar="N",
        help="tokens per block of the cache; default 16",
    )
    group.add_argument(
        "--engine",
        type=one_of(engine_names),
        metavar="NAME",
        help="serving (default: vLLM, SGLang, TensorRT-LLM), compiled, eager, llama.cpp",
    )
    group.add_argument(
        "--draft", metavar="MODEL", help="a smaller draft model, for speculative decoding"
    )
    group.add_argument(
        "--guesses",
        type=positive_count,
        metavar="N",
        help="draft tokens per round; default 4, or as many as --mtp",
    )
    group.add_argument(
        "--acceptance",
        type=fraction,
        metavar="SHARE",
        help="probability that a draft token is accepted; default 0.7",
    )


def weight_names() -> "Iterable[str]":
    from torchtally.plan.inference.formats import ALIASES, WEIGHT_FORMATS

    names = (*WEIGHT_FORMATS, *ALIASES)
    return dict.fromkeys((*names, *(name.upper() for name in names), *map(str.lower, names)))


def cache_names() -> "Iterable[str]":
    from torchtally.plan.kv_cache import ALIASES, CACHE_FORMATS

    return (*CACHE_FORMATS, *ALIASES)


def engine_names() -> "Iterable[str]":
    from torchtally.plan.inference.engines import ALIASES, ENGINES

    return (*ENGINES, *ALIASES)


def formats_text() -> str:
    """Every format of weights, a line each."""
    from torchtally.plan.inference.formats import WEIGHT_FORMATS

    return "".join(f"  {kept.name:12}{kept.summary}\n" for kept in WEIGHT_FORMATS.values())


def inference_request(args: argparse.Namespace) -> "InferenceRequest | None":
    """What is asked of inference. Raises UsageError for its options without --inference."""
    if not args.inference:
        # Frozen weights beside adapters have a format, too, answers lengths and an engine.
        given = [
            name
            for name in OPTIONS
            if getattr(args, name) is not None
            and not (name == "weights" and args.lora)
            and not (name in ANSWERS and is_preference(args))
        ]
        if given:
            option = given[0].replace("_", "-")
            raise UsageError(f"--{option} is an option of inference: add --inference.")
        return None
    from torchtally.plan.inference.engines import engine
    from torchtally.plan.inference.formats import weight_format
    from torchtally.plan.kv_cache import CacheKind, cache_format
    from torchtally.plan.questions.inference_request import InferenceRequest

    _check(args)
    who = engine(args.engine or "serving")
    if args.kv_block is not None and who.cache is not CacheKind.PAGED:
        raise UsageError(f"--kv-block: {args.engine} does not page its KV cache; leave it out.")
    return InferenceRequest(
        prompt=args.prompt,
        output=args.generate,
        weights=None if args.weights is None else weight_format(args.weights),
        cache=cache_format(args.kv_cache or "bf16"),
        page=args.kv_block,
        engine=who,
        draft=None if args.draft is None else _draft(args.draft),
        guesses=args.guesses,
        acceptance=0.7 if args.acceptance is None else args.acceptance,
    )


def _check(args: argparse.Namespace) -> None:
    asked = [option for option, name in TRAINING.items() if getattr(args, name)]
    if asked:
        raise UsageError(f"--inference and {asked[0]} are separate questions: give one at a time.")
    if args.peak is not None:
        raise UsageError("--peak applies to training only: leave it out with --inference.")
    if args.largest == "sequence" and args.sequence is not None:
        raise UsageError("--largest sequence asks for the context: leave --context out.")
    if args.acceptance == 1:
        raise UsageError("--acceptance must be below 1: no draft model is always right.")
    has_draft = args.draft is not None or args.mtp is not None
    if not has_draft and (args.guesses is not None or args.acceptance is not None):
        raise UsageError(
            "--guesses and --acceptance need a draft model: --draft llama-3-8b or --mtp 1."
        )
    if args.draft is not None and args.mtp is not None:
        raise UsageError("--draft and --mtp both draft tokens: give one of them.")
    if args.gpus is None and (args.draft is not None or args.layout is not None):
        raise UsageError("--draft and --layout need chips: add --gpus H100-SXM.")


def _draft(text: str) -> "Model":
    from torchtally.plan.architecture.lookup import model

    return model(text)


def inference_question(args: argparse.Namespace) -> "Callable[[Request], Answer]":
    """Question about inference: with chips how fast, without how large, or the largest that
    fits.
    """
    from torchtally.plan.questions.inference import inference
    from torchtally.plan.questions.inference_memory import LARGEST_SERVED, inference_memory

    if args.largest is not None:
        if args.largest not in LARGEST_SERVED:
            raise UsageError("--inference supports --largest batch and --largest sequence only.")
        return LARGEST_SERVED[args.largest]
    return inference if args.gpus is not None else inference_memory
