"""The question that the arguments of `tally plan` ask."""

from collections.abc import Iterable

from torchtally.errors import UsageError
from torchtally.options import options_of
from torchtally.plan.kv_cache import CacheKind
from torchtally.plan.questions.chips_needed import fewest_chips, what_to_rent
from torchtally.plan.questions.compute_budget import compute_budget
from torchtally.plan.questions.counted import counted_card, counted_fit
from torchtally.plan.questions.fine_tuning import TUNED
from torchtally.plan.questions.fit import fit
from torchtally.plan.questions.implied_mfu import implied_mfu
from torchtally.plan.questions.inference import inference
from torchtally.plan.questions.inference_memory import LARGEST_SERVED, inference_memory
from torchtally.plan.questions.inference_request import engine_of
from torchtally.plan.questions.largest import LARGEST
from torchtally.plan.questions.layouts import layouts
from torchtally.plan.questions.model_card import model_card
from torchtally.plan.questions.model_within import model_within
from torchtally.plan.questions.own_layout import own_layout
from torchtally.plan.questions.preference import preference
from torchtally.plan.questions.request import Request
from torchtally.plan.questions.tokens_within import tokens_within
from torchtally.plan.questions.training_time import training_time
from torchtally.plan.questions.uses import Question
from torchtally.plan.questions.whole_training import whole_training

CONFIGURATIONS = ("torchtitan", "megatron", "deepspeed", "accelerate")
SEPARATE = ("search", *CONFIGURATIONS, "tokens_per_s", "flops")
"""Fields that ask about a whole training, by a question of their own."""


def question_of(request: Request) -> Question:
    """The options that name a question come first, then what is missing."""
    if request.dpo or request.grpo:
        return preference
    if request.lora is not None and request.layout is None and not request.search:
        return TUNED[request.largest]
    if request.inference:
        return _inference_question(request)
    named = _named_question(request)
    if named is not None:
        return named
    is_limited = request.deadline_s is not None or request.budget_usd is not None
    if request.subject is None and is_limited and request.cluster is not None:
        return model_within
    if request.subject is None:
        raise UsageError(
            "Missing model: give a name (llama-3-70b), a config.json, a .safetensors file or a "
            "number of parameters (70B); or ask for the largest one: --largest model; or for the "
            "best one of a time: --gpus 8xH100-SXM --deadline 14d."
        )
    if request.tokens is None:
        return _without_tokens(request, is_limited)
    if request.cluster is None:
        return what_to_rent
    if request.checkpoint_every is not None:
        return whole_training
    return training_time if request.deadline_s is None else fewest_chips


def refuse_several(request: Request) -> None:
    """Raise UsageError for options that ask two questions at once."""
    written = _given(request, CONFIGURATIONS)
    if len(written) > 1:
        raise UsageError(f"{' and '.join(written)}: give one at a time.")
    if request.inference:
        _check_inference(request)
    if request.dpo or request.grpo:
        others: tuple[str, ...] = (
            *("inference", *SEPARATE, "layout", "compare", "largest", "tokens"),
            *("deadline_s", "budget_usd", "sequence"),
        )
        _refuse_beside(request, "--dpo" if request.dpo else "--grpo", others)
        if request.dpo and request.grpo:
            raise UsageError("--dpo and --grpo are two ways to train: give one of them.")
    elif request.lora is not None:
        _refuse_beside(request, "--lora", (*CONFIGURATIONS, "tokens_per_s", "flops", "compare"))
        if request.largest == "model":
            raise UsageError("--lora and --largest model cannot be combined.")


def _given(request: Request, fields: Iterable[str]) -> list[str]:
    """The names of those options that have a value."""
    options = options_of(type(request))
    return [options[field].name for field in fields if getattr(request, field)]


def _refuse_beside(request: Request, name: str, fields: Iterable[str]) -> None:
    given = _given(request, fields)
    if given:
        raise UsageError(f"{name} and {given[0]} cannot be combined.")


def _check_inference(request: Request) -> None:
    if request.lora is not None:
        raise UsageError("--lora trains and --inference does not: give one at a time.")
    asked = _given(request, (*SEPARATE, "page"))
    if asked:
        raise UsageError(f"--inference and {asked[0]} are separate questions: give one at a time.")
    if request.peak_flop_per_s is not None:
        raise UsageError("--peak applies to training only: leave it out with --inference.")
    if request.largest == "sequence" and request.sequence is not None:
        raise UsageError("--largest sequence asks for the context: leave --context out.")
    if request.acceptance == 1:
        raise UsageError("--acceptance must be below 1: no draft model is always right.")
    guesses = {"guesses", "acceptance"}.intersection(request.given)
    if guesses and request.draft is None and request.mtp is None:
        raise UsageError(
            "--guesses and --acceptance need a draft model: --draft llama-3-8b or --mtp 1."
        )
    if request.draft is not None and request.mtp is not None:
        raise UsageError("--draft and --mtp both draft tokens: give one of them.")
    if request.gpus is None and (request.draft is not None or request.layout is not None):
        raise UsageError("--draft and --layout need chips: add --gpus H100-SXM.")
    engine = engine_of(request)
    if request.kv_block is not None and engine.cache is not CacheKind.PAGED:
        raise UsageError(f"--kv-block: {engine.name} does not page its KV cache; leave it out.")


def _inference_question(request: Request) -> Question:
    """Speed on given chips, size without them, or the largest that fits."""
    if request.largest is not None:
        if request.largest not in LARGEST_SERVED:
            raise UsageError("--inference supports --largest batch and --largest sequence only.")
        return LARGEST_SERVED[request.largest]
    return inference if request.gpus is not None else inference_memory


def _named_question(request: Request) -> Question | None:
    is_written = request.framework != "" and request.layout is None
    options: dict[str, tuple[bool, Question]] = {
        "--largest": (request.largest is not None, LARGEST[request.largest or "model"]),
        "--layout": (request.layout is not None, own_layout),
        "--search": (request.search or is_written, layouts),
        "--tokens-per-s": (request.tokens_per_s is not None, implied_mfu),
        "--flops": (request.flops is not None, compute_budget),
    }
    named = {option: question for option, (is_given, question) in options.items() if is_given}
    if len(named) > 1:
        raise UsageError(f"{' and '.join(named)} are separate questions: give one at a time.")
    return next(iter(named.values()), None)


def _without_tokens(request: Request, is_limited: bool) -> Question:
    counted = None if request.subject is None else request.subject.counted
    has_step = counted is not None and counted.step is not None
    if request.cluster is not None:
        whole = counted_fit if has_step else fit
        return tokens_within if is_limited else whole
    if is_limited:
        raise UsageError(
            "--deadline and --budget need more: --tokens 1T (what should be rented?) or "
            "--gpus 8xH100-SXM (on how many tokens?)."
        )
    return counted_card if has_step else model_card
