"""No option of `tally plan` is ignored: it changes the answer, or it is an error."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from torchtally.cli import declared, main, plan
from torchtally.cli.arguments import Parser
from torchtally.cli.plan_questions import question_of
from torchtally.cli.plan_request import resolved
from torchtally.errors import UsageError
from torchtally.options import COUNT, option, options_of
from torchtally.plan.questions import Request, uses
from torchtally.plan.questions.answer import Answer
from torchtally.plan.questions.model_card import model_card
from torchtally.plan.questions.plan_options import MODEL, TRAINING

Capture = pytest.CaptureFixture[str]

TWO = ("--gpus", "2xH100-SXM")
SMALL = ("gpt2", *TWO)
MFU = ("--mfu", "0.4")

QUESTIONS: dict[str, tuple[str, ...]] = {
    "model": ("gpt2",),
    "model by its size": ("7B",),
    "model by its sizes": ("--layers", "2", "--width", "64", "--heads", "2", "--vocabulary", "99"),
    "fit": SMALL,
    "fit by size": ("100M", *TWO),
    "training-time": (*SMALL, "--tokens", "1B", *MFU),
    "training-time of a size": ("100M", *TWO, "--tokens", "1B", *MFU),
    "training-time of a size, of steps": (
        *("100M", *TWO, "--tokens", "1B", *MFU),
        *("--batch", "8", "--sequence", "512"),
    ),
    "training-time, predicted": (*SMALL, "--tokens", "1B"),
    "whole-training": (
        *(*SMALL, "--tokens", "1B", *MFU, "--batch", "64", "--checkpoint-every", "auto"),
        *("--checkpoint-bandwidth", "1GB/s", "--mtbf", "1h", "--restart", "schedule=5min"),
    ),
    "fewest-chips": ("gpt2", "--gpus", "H100-SXM", "--tokens", "1T", *MFU, "--deadline", "2d"),
    "what-to-rent": ("gpt2", "--tokens", "1T", *MFU),
    "what-to-rent, in time": ("gpt2", "--tokens", "1T", *MFU, "--deadline", "2d"),
    "tokens-within": (*SMALL, *MFU, "--deadline", "2d"),
    "tokens-within, for money": (*SMALL, *MFU, "--budget", "100"),
    "implied-mfu": (*SMALL, "--tokens-per-s", "1000"),
    "largest-model": ("--largest", "model", *TWO),
    "largest-model, with activations": ("--largest", "model", *TWO, "--sequence", "128"),
    "largest-batch": (*SMALL, "--largest", "batch"),
    "largest-sequence": (*SMALL, "--largest", "sequence"),
    "layouts": (*SMALL, "--search"),
    "layouts, of a training": (*SMALL, "--search", "--tokens", "1B"),
    "own-layout": (*SMALL, "--layout", "dp 2"),
    "compute-budget": ("--flops", "1e20"),
    "compute-budget, on chips": ("--flops", "1e20", *TWO, *MFU),
    "inference": (*SMALL, "--inference"),
    "inference, with guesses": (*SMALL, "--inference", "--draft", "gpt2"),
    "inference, by prediction": (*SMALL, "--inference", "--mtp", "1"),
    "inference-memory": ("gpt2", "--inference"),
    "most-sequences": (*SMALL, "--inference", "--largest", "batch"),
    "longest-context": (*SMALL, "--inference", "--largest", "sequence"),
    "layouts, with prediction": (*SMALL, "--search", "--mtp", "1"),
    "fine-tuning": (*SMALL, "--lora", "4"),
    "fine-tuning, without chips": ("gpt2", "--lora", "4"),
    "fine-tuning, of tokens": (*SMALL, "--lora", "4", "--tokens", "1B", *MFU),
    "preference, DPO": (*SMALL, "--dpo"),
    "preference, GRPO": (*SMALL, "--grpo"),
    "preference, of adapters": (*SMALL, "--grpo", "--lora", "4"),
    "largest-batch, of adapters": (*SMALL, "--lora", "4", "--largest", "batch"),
    "largest-sequence, of adapters": (*SMALL, "--lora", "4", "--largest", "sequence"),
}

VALUES: dict[str, tuple[str, ...]] = {
    "--parameters": ("3B",),
    "--tokens": ("7B",),
    "--lora": ("8",),
    "--lora-targets": ("q",),
    "--lora-dropout": ("0.1",),
    "--dora": ("",),
    "--checkpoint-every": ("100", "2min"),
    "--checkpoints": ("async",),
    "--checkpoint-bandwidth": ("2GB/s",),
    "--evaluate-every": ("100",),
    "--evaluation-tokens": ("1M",),
    "--mtbf": ("2h",),
    "--restart": ("1min",),
    "--repair": ("4h",),
    "--spares": ("1",),
    "--elastic": ("",),
    "--prices": (str(Path(__file__).with_name("prices.toml")),),
    "--pue": ("1.2",),
    "--region": ("us-central1",),
    "--generations": ("4",),
    "--reference": ("",),
    "--sequence": ("256",),
    "--micro-batch": ("2", "4"),
    "--batch": ("64",),
    "--recipe": ("fp8", "fp32"),
    "--optimizer": ("sgd",),
    "--recompute": ("full",),
    "--attention": ("math",),
    "--host": ("compiled",),
    "--stack": ("torchtitan",),
    "--overlap": ("data=0",),
    "--loss": ("plain",),
    "--gradients": ("float32", "float16"),
    "--fp8-weights": ("",),
    "--network": ("8x25Gb/s",),
    "--pace": ("best",),
    "--kernels": ("eager", "fused"),
    "--convention": ("causal",),
    "--mfu": ("0.3",),
    "--memory": ("4GB", "2GB"),
    "--peak": ("100TFLOP/s",),
    "--price": ("9",),
    "--deadline": ("1h", "300d"),
    "--budget": ("9",),
    "--top": ("2",),
    "--tied": ("",),
    "--gated": ("",),
    "--ffn": ("100",),
    "--kv-heads": ("1",),
    "--layers": ("3",),
    "--width": ("32",),
    "--heads": ("1",),
    "--vocabulary": ("98",),
    "--mtp": ("1",),
    "--largest": ("model", "batch"),
    "--tokens-per-s": ("50",),
    "--flops": ("1e20",),
    "--prompt": ("100",),
    "--generate": ("100",),
    "--weights": ("fp8",),
    "--kv-cache": ("fp8",),
    "--kv-block": ("1024",),
    "--engine": ("compiled",),
    "--draft": ("gpt2",),
    "--guesses": ("2",),
    "--acceptance": ("0.5",),
    "--source-sequence": ("100",),
    "--images": ("336",),
    "--audio": ("30s",),
}
"""Values of each option that differ from its default; of two, either may change the answer."""


@pytest.fixture(scope="module")
def parser() -> Parser:
    parser = Parser()
    plan.add_parser(parser.add_subparsers())
    return parser


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "error", _refuse)
        yield


def _refuse(parser: Parser, message: str) -> None:
    raise UsageError(message)


def answered(parser: Parser, words: tuple[str, ...]) -> Answer:
    """Equal to another where figures with their working, tables and sentences are."""
    return plan.answer_of(asked(parser, words))


def asked(parser: Parser, words: tuple[str, ...]) -> Request:
    return resolved(plan.asked_of(parser.parse_args(["plan", *words])))


@cache
def plainly_answered(parser: Parser, key: str) -> Answer:
    """Without another option."""
    return answered(parser, QUESTIONS[key])


def with_option(option: str, value: str) -> tuple[str, ...]:
    return (option, value) if value else (option,)


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize("key", QUESTIONS)
def test_every_option_changes_the_answer_or_is_an_error(key: str, parser: Parser) -> None:
    words = QUESTIONS[key]
    plain = plainly_answered(parser, key)
    ignored = [
        option
        for option, values in VALUES.items()
        if option not in words and not _counts(parser, words, plain, option, values)
    ]
    assert ignored == []


def _counts(
    parser: Parser, words: tuple[str, ...], plain: Answer, option: str, values: tuple[str, ...]
) -> bool:
    for value in values:
        try:
            if answered(parser, (*words, *with_option(option, value))) != plain:
                return True
        except UsageError:
            return True
    return False


@pytest.mark.one_case_in(12)
@pytest.mark.parametrize("key", QUESTIONS)
def test_what_an_answer_depends_on_is_not_refused(key: str, parser: Parser) -> None:
    """Options as if the question could not depend on them: those refused leave the answer alone."""
    words = QUESTIONS[key]
    plain = plainly_answered(parser, key)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uses, "refuse_unused", lambda *of_question: None)
        refused = []
        for option, values in VALUES.items():
            if option not in words and _is_refused_alone(parser, words, option, values[0]):
                refused += [
                    (option, value)
                    for value in values
                    if answered(parser, (*words, *with_option(option, value))) != plain
                ]
    assert refused == []


def _is_refused_alone(parser: Parser, words: tuple[str, ...], option: str, value: str) -> bool:
    """The question stays the same one, and the option is refused by `refuse_unused` alone."""
    try:
        before = question_of(asked(parser, words))
        request = asked(parser, (*words, *with_option(option, value)))
        question = question_of(request)
    except UsageError:
        return False
    try:
        uses.refuse_unused(request, question)
    except UsageError:
        return question is before
    return False


def test_the_values_above_are_of_every_option_that_is_checked() -> None:
    options = options_of(Request).values()
    assert {option.name for option in options if option.is_checked} - {"MODEL"} == set(VALUES)


def test_an_option_that_is_not_given_is_not_among_the_given(parser: Parser) -> None:
    assert asked(parser, SMALL).given == ("model", "gpus")
    assert list(uses.given_options(asked(parser, SMALL))) == ["model"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3-8b", "--largest", "model", *TWO), "MODEL changes nothing"),
        (("gpt2", "--host", "graphs", "--pace", "best"), "--host and --pace change nothing"),
        (("gpt2", "--models"), "--models lists"),
        (("7B", "--recipe", "fp8", "--price", "2"), "--price changes nothing"),
    ],
)
def test_the_refusal_names_the_option(
    words: tuple[str, ...], message: str, capsys: Capture
) -> None:
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_size_alone_takes_a_usual_sequence_and_says_so(capsys: Capture) -> None:
    assert main(["plan", "100M", *TWO]) == 0
    assert "Sequences of 8192 tokens, usual in pre-training (--sequence)" in capsys.readouterr().out


def test_128k_is_a_context_of_131072(capsys: Capture) -> None:
    assert main(["plan", "llama-3.1-8b", "--sequence", "128K"]) == 0
    assert "131072 tokens" in capsys.readouterr().out


def help_of(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["plan", *words])
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_is_a_screen_that_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    short, whole = help_of(["-h"], capsys), help_of(["--help", "all"], capsys)
    assert len(short.splitlines()) < 80 < 200 < len(whole.splitlines())
    options = set(re.findall(r"--[a-z][\w-]+", whole.partition("examples:")[0]))
    assert options <= {*re.findall(r"--[a-z][\w-]+", short), "--context", "--output"}
    explained = short.partition("options that most plans need:")[2].partition("others;")[0]
    assert len(re.findall(r"^  --", explained, re.M)) == 10


# A new option -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WithHaste(Request):
    """A request with one field more: all that an option of `tally plan` takes."""

    haste: int = option("--haste", TRAINING, "hurry by so many seconds", COUNT, default=1)


def doubled(request: Request) -> Answer:
    """An answer that depends on the new option alone."""
    assert isinstance(request, WithHaste)
    return Answer(question="doubled", headline=(f"{2 * request.haste} s",))


@pytest.fixture
def hasty() -> Parser:
    parser = Parser()
    plan.add_parser(parser.add_subparsers(), WithHaste)
    return parser


def asked_in_haste(hasty: Parser, *words: str) -> Request:
    return declared.asked(WithHaste, hasty.parse_args(["plan", *words]))


def test_a_field_is_an_option_in_the_request_the_help_and_the_refusals(
    hasty: Parser, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = asked_in_haste(hasty, "gpt2", "--haste", "3K")
    assert request == WithHaste(model="gpt2", haste=3000, given=("haste", "model"))
    monkeypatch.setattr(uses, "_USES", {**uses._USES, doubled: (MODEL, "haste")})
    uses.refuse_unused(request, doubled)
    assert doubled(request).headline == ("6000 s",)
    assert asked_in_haste(hasty, "gpt2") == WithHaste(model="gpt2", given=("model",))
    with pytest.raises(UsageError, match="--haste changes nothing in the answer to this question"):
        uses.refuse_unused(request, model_card)
    with pytest.raises(UsageError, match="argument --haste: '0' is not above 0"):
        asked_in_haste(hasty, "gpt2", "--haste", "0")


def test_the_docstring_lists_the_fields() -> None:
    assert Request.__doc__ is not None
    assert "    deadline_s: 30d, 24h, 2w (--deadline)\n" in Request.__doc__


def test_a_field_is_an_option_in_both_helps(hasty: Parser, capsys: Capture) -> None:
    for words in (["-h"], ["-h", "all"]):
        with pytest.raises(SystemExit):
            hasty.parse_args(["plan", *words])
        printed = capsys.readouterr().out
        assert "--haste" in printed
    training = printed.partition("\ntraining:\n")[2].partition("\n\n")[0]
    assert "  --haste N             hurry by so many seconds" in training
