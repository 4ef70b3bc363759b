"""`tally plan` as a user meets it: the answer first, its working, errors that say what now."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtally.cli import main, plan
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.flops import Recompute
from torchtally.plan.optimizers import OPTIMIZERS
from torchtally.plan.parallel.attention import ATTENTIONS
from torchtally.plan.parallel.pace import PACES, Host
from torchtally.plan.quantity import FUNCTIONS, of
from torchtally.plan.questions.largest import LARGEST
from torchtally.plan.recipes import RECIPES
from torchtally.units import Unit

pytestmark = pytest.mark.one_case_in(2)

Capture = pytest.CaptureFixture[str]

EIGHT = ("--gpus", "8xH100-SXM")
SMALL = ("llama-3-8b", "--gpus", "2xH100-SXM", "--sequence", "1024")

QUESTIONS = {
    "model": ("llama-3-8b",),
    "model by its size": ("7B",),
    "own-layout": (*SMALL, *EIGHT, "--batch", "16", "--layout", "tp 2, zero-1"),
    "fit": ("llama-3-8b", *EIGHT, "--micro-batch", "1", "--sequence", "4096"),
    "fit by size": ("--parameters", "7B", *EIGHT, "--sequence", "2048"),
    "training-time": ("70B", "--tokens", "15T", "--gpus", "1024xH100-SXM", "--mfu", "0.5"),
    "training-time, predicted": (*SMALL, "--tokens", "1B", "--batch", "8"),
    "whole-training": (
        *("70B", "--tokens", "15T", "--gpus", "1024xH100-SXM", "--mfu", "0.5", "--mtbf", "llama-3"),
        *("--checkpoint-every", "auto", "--checkpoint-bandwidth", "20GB/s", "--restart", "10min"),
    ),
    "fewest-chips": (
        *("7B", "--tokens", "1T", "--mfu", "0.4", "--deadline", "14d", "--gpus", "H100-SXM"),
    ),
    "what-to-rent": ("7B", "--tokens", "1T", "--mfu", "0.4", "--budget", "500K"),
    "what-to-rent, in time": ("7B", "--tokens", "1T", "--mfu", "0.4", "--deadline", "2w"),
    "tokens-within": ("7B", *EIGHT, "--mfu", "0.4", "--budget", "$100K"),
    "tokens-within, in time": ("7B", *EIGHT, "--mfu", "0.4", "--deadline", "30d"),
    "tokens-within, predicted": (*SMALL, "--deadline", "30d"),
    "model-within": (*EIGHT, "--mfu", "0.5", "--peak", "1000TFLOP/s", "--deadline", "14d"),
    "model-within, predicted": ("--gpus", "8xH100-SXM", "--deadline", "1d"),
    "model-within, for money": (*EIGHT, "--mfu", "0.4", "--budget", "10K"),
    "implied-mfu": ("llama-3-8b", *EIGHT, "--tokens-per-s", "60K"),
    "largest-model": ("--largest", "model", *EIGHT, "--recipe", "fp32"),
    "largest-model, with activations": ("--largest", "model", *EIGHT, "--sequence", "4096"),
    "largest-batch": ("llama-3-8b", "--largest", "batch", *EIGHT, "--sequence", "1024"),
    "largest-sequence": ("llama-3-8b", "--largest", "sequence", *EIGHT),
    "compute-budget": ("--flops", "3e24"),
    "compute-budget, on chips": ("--flops", "3e24", *EIGHT, "--mfu", "0.4"),
    "inference": ("llama-3-8b", "--inference", *EIGHT, "--weights", "fp8"),
    "inference-memory": ("llama-3.1-8b", "--inference", "--context", "128K"),
    "most-sequences": ("llama-3-8b", "--inference", *EIGHT, "--largest", "batch"),
    "longest-context": ("llama-3-8b", "--inference", *EIGHT, "--largest", "sequence"),
    "fine-tuning": (
        *("qwen-2.5-14b", "--lora", "16", "--weights", "nf4", "--gpus", "RTX-4090"),
        *("--sequence", "2048", "--recompute", "full"),
    ),
    "fine-tuning, without chips": ("llama-3-8b", "--lora", "16", "--lora-targets", "q,v_proj"),
    "fine-tuning, of tokens": (
        "llama-3-8b",
        "--lora",
        "8",
        *EIGHT,
        "--tokens",
        "1B",
        "--mfu",
        "0.3",
        "--lora-dropout",
        "0.05",
    ),
    "largest-batch, of adapters": (
        "llama-3-8b",
        "--lora",
        "16",
        *EIGHT,
        "--largest",
        "batch",
        "--sequence",
        "1024",
    ),
    "largest-sequence, of adapters": (
        "llama-3-8b",
        "--lora",
        "16",
        *EIGHT,
        "--largest",
        "sequence",
    ),
    "layouts": (*SMALL, "--search", "--batch", "8"),
    "layouts, of a training": (*SMALL, "--search", "--batch", "8", "--tokens", "1T"),
}
"""A command line for every question; the part after a comma tells apart."""


def out(capsys: Capture, *arguments: str) -> str:
    assert main(["plan", *arguments]) == 0
    return capsys.readouterr().out


def document(capsys: Capture, *arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(out(capsys, *arguments, "--json"))
    return answer


# What is asked -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", QUESTIONS)
def test_what_is_given_says_what_is_asked(key: str, capsys: Capture) -> None:
    question = key.partition(",")[0].partition(" ")[0]
    assert document(capsys, *QUESTIONS[key])["question"] == question


def test_a_chip_without_bfloat16_takes_float16_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plans = []
    for options in ([], ["--recipe", "mixed-fp16"]):
        assert main(["plan", "gpt2", "--gpus", "T4", *options]) == 0
        plans.append(capsys.readouterr())
    assert plans[0].out == plans[1].out
    assert "T4 has no products in bfloat16: --recipe mixed-fp16" in plans[0].err
    assert "mixed-fp16" not in plans[1].err
    assert main(["plan", "gpt2", "--gpus", "T4", "--recipe", "mixed"]) == 2


def test_the_missions_days(capsys: Capture) -> None:
    """The peak that is taught is half of the page's 1979; the table has the sum it comes from."""
    line = ["--parameters", "70e9", "--tokens", "15e12", "--gpus", "1024xH100-SXM", "--mfu", "0.5"]
    first = out(capsys, *line, "--peak", "989.5TFLOP/s").splitlines()[0]
    assert first.startswith("143.93 days to train 70.00 B parameters on 15.00 T tokens")
    assert out(capsys, *line).startswith("143.94 days")


@pytest.mark.parametrize(("budget", "claim"), [("20M", "within"), ("1M", "more than")])
def test_a_budget_is_compared_with_the_cost(budget: str, claim: str, capsys: Capture) -> None:
    text = " ".join(out(capsys, *QUESTIONS["training-time"], "--budget", budget).split())
    assert f"for $12.81 M, {claim} the budget of ${float(budget[:-1]):.2f} M" in text


def test_the_missions_largest_model(capsys: Capture) -> None:
    first = out(capsys, *QUESTIONS["largest-model"], "--memory", "80GB").splitlines()[0]
    assert first == "40.00 B parameters fit 8 H100-SXM with adamw, fp32, before activations"


def test_activations_make_the_largest_model_smaller(capsys: Capture) -> None:
    bound = document(capsys, *QUESTIONS["largest-model"])["figures"][0]["value"]
    line = QUESTIONS["largest-model, with activations"]
    printed = document(capsys, *line)
    assert printed["figures"][0]["value"] < printed["figures"][1]["value"] == bound


def test_the_best_model_of_two_weeks(capsys: Capture) -> None:
    """8 x 10^15 x 0.5 FLOP/s for 1,209,600 s: 4.84e21 = 6 N 20 N."""
    printed = document(capsys, *QUESTIONS["model-within"])
    size, tokens, flops = (figure["value"] for figure in printed["figures"][:3])
    assert flops == pytest.approx(8e15 * 0.5 * 14 * 86400)
    assert size == pytest.approx((flops / 120) ** 0.5)
    assert tokens == pytest.approx(20 * size)


def test_the_best_model_is_trained_in_that_time(capsys: Capture) -> None:
    """Asked the other way round, its size is trained on about as many tokens."""
    printed = document(capsys, *QUESTIONS["model-within, predicted"])
    size, tokens = (figure["value"] for figure in printed["figures"][:2])
    limits = QUESTIONS["model-within, predicted"]
    asked = document(capsys, str(int(size)), *limits)
    assert asked["question"] == "tokens-within"
    assert asked["figures"][0]["value"] == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("key", ["fit by size", "tokens-within, by size"])
def test_a_shape_that_is_assumed_is_in_the_first_lines(key: str, capsys: Capture) -> None:
    lines = {
        **QUESTIONS,
        "tokens-within, by size": ("7B", "--gpus", "8xH100-SXM", "--deadline", "14d"),
    }
    first = " ".join(" ".join(out(capsys, *lines[key]).splitlines()[:3]).split())
    assert "7.00 B parameters in an assumed shape (34 layers of width 3840)" in first


def test_a_budget_of_compute_among_those_that_are_known(capsys: Capture) -> None:
    """C = 6 N D with D = 20 N: N = sqrt(C / 120)."""
    printed = document(capsys, "--flops", "1.2e23")
    assert printed["figures"][0]["value"] == pytest.approx((1e21) ** 0.5)
    names = [row["training"] for row in printed["tables"][0]["rows"]]
    assert names[:2] == ["this budget", "GPT-3 175B"]


def test_what_bounds_a_layout_is_seen_in_eighty_columns(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = out(capsys, *QUESTIONS["layouts"]).splitlines()
    header = lines[lines.index("Layouts, fastest first") + 1]
    assert "bound by" in header
    assert header.rstrip().endswith("layout")


def test_every_bound_has_a_short_name() -> None:
    from torchtally.plan.parallel.degrees import DEGREES
    from torchtally.plan.parallel.step import Parts
    from torchtally.plan.questions.words import bound_in_short

    nothing, second = of(0.0, Unit.SECONDS), of(1.0, Unit.SECONDS)
    names = ("compute", "bubble", "optimizer", *(degree.name for degree in DEGREES))
    for name in names:
        seconds = dict.fromkeys(names, nothing) | {name: second}
        for streaming in (nothing, second):
            assert len(bound_in_short(Parts(seconds, second, streaming).largest)) <= 10


def test_what_does_not_fit_says_so(capsys: Capture) -> None:
    text = out(capsys, "llama-3-70b", "--gpus", "H100-SXM", "--sequence", "1024")
    assert text.startswith("does not fit: Llama 3 70B")


def test_a_model_by_its_numbers(capsys: Capture) -> None:
    line = ["--layers", "12", "--width", "768", "--heads", "12", "--vocabulary", "50257", "--tied"]
    printed = document(capsys, *line)
    assert printed["figures"][0]["value"] == 50257 * 768 + 12 * (12 * 768**2 + 2 * 768) + 768


def test_chips_are_compared(capsys: Capture) -> None:
    printed = document(capsys, *QUESTIONS["training-time"], "--compare", "A100-SXM,B200")
    rows = {row["chip"]: row for row in printed["tables"][0]["rows"]}
    assert list(rows) == ["H100-SXM", "A100-SXM", "B200"]
    days = [row["figure_training_time"] for row in rows.values()]
    assert days[1] > days[0] > days[2]


def test_a_price_is_of_one_chip(capsys: Capture) -> None:
    line = (*QUESTIONS["training-time"], "--compare", "A100-SXM", "--price", "1")
    printed = document(capsys, *line)
    hours, cost = (
        {row["chip"]: row[name] for row in printed["tables"][0]["rows"]}
        for name in ("figure_chip-hours", "figure_cost")
    )
    assert cost["H100-SXM"] == pytest.approx(hours["H100-SXM"])
    assert cost["A100-SXM"] != pytest.approx(hours["A100-SXM"])


def test_a_chip_that_cannot_do_it_is_named(capsys: Capture) -> None:
    printed = document(capsys, *QUESTIONS["training-time"], "--compare", "V100-SXM-16GB,A100-SXM")
    assert [row["chip"] for row in printed["tables"][0]["rows"]] == ["H100-SXM", "A100-SXM"]
    assert any("V100" in value and "bfloat16" in value for value in printed["unknown"])


def test_the_models_that_are_known(capsys: Capture) -> None:
    text = out(capsys, "--models")
    assert "GPT-2 " in text
    assert "Llama 3 70B" in text


def test_a_config_file(tmp_path: Path, capsys: Capture) -> None:
    keys = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys))
    layer = 64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert document(capsys, str(path))["figures"][0]["value"] == 2 * 100 * 64 + 2 * layer + 64


def test_a_checkpoint_alone_says_how_many(tmp_path: Path, capsys: Capture) -> None:
    """Only its header is read; with a config.json beside it, the shape is known too."""
    path = tmp_path / "model.safetensors"
    header = {"w": {"dtype": "BF16", "shape": [300, 400], "data_offsets": [0, 240_000]}}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(240_000))
    printed = document(capsys, str(path))
    assert printed["question"] == "model"
    assert printed["figures"][0]["value"] == 120_000
    assert document(capsys, str(tmp_path))["figures"][0]["value"] == 120_000
    path.write_bytes(b"no checkpoint")
    assert main(["plan", str(path)]) == 2
    assert "model.safetensors" in capsys.readouterr().err


# How it is said ------------------------------------------------------------------------------


@pytest.mark.parametrize("key", QUESTIONS)
@pytest.mark.parametrize("more", [(), ("--explain",)], ids=["short", "explained"])
def test_eighty_columns(
    key: str, more: tuple[str, ...], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = out(capsys, *QUESTIONS[key], *more).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].strip()


def test_every_step_is_explained(capsys: Capture) -> None:
    text = " ".join(out(capsys, *QUESTIONS["training-time"], "--explain").split())
    assert "training time = training FLOPs / (chips * H100-SXM bfloat16 peak * MFU)" in text
    assert "= 6.3e24 FLOPs / (1,024 * 989.40 TFLOP/s * 50.0 %) = 143.94 days" in text
    assert "[1] Kaplan et al. 2020, arXiv 2001.08361" in text


@pytest.mark.parametrize("key", QUESTIONS)
def test_the_working_can_be_done_again(key: str, capsys: Capture) -> None:
    """From a document alone: every formula gives its number, of terms that stand before it."""
    steps = document(capsys, *QUESTIONS[key])["working"]
    for place, step in enumerate(steps):
        if step["formula"]:
            assert all(term < place for term in step["terms"].values())
            numbers = {word: steps[term]["value"] for word, term in step["terms"].items()}
            value = eval(step["formula"], {"__builtins__": {}, **FUNCTIONS}, numbers)
            assert math.isclose(value, step["value"], rel_tol=1e-9, abs_tol=0.5), step


@pytest.mark.parametrize("key", QUESTIONS)
def test_figures_are_in_the_working(key: str, capsys: Capture) -> None:
    printed = document(capsys, *QUESTIONS[key])
    said = {(record["value"], record["unit"]) for record in printed["working"]}
    assert {(figure["value"], figure["unit"]) for figure in printed["figures"]} <= said


def test_a_document_in_a_file(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "plan.json"
    assert out(capsys, "7B", "--json", str(path)) == ""
    assert json.loads(path.read_text())["question"] == "model"


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; from torchtally.cli import main; "
        f"assert main(['plan', *{QUESTIONS['layouts']!r}]) == 0; "
        "print([name for name in ('torch', 'numpy', 'torchtally.ledger') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_help_lists_every_recipe_and_optimizer(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a terminal that is wide enough for each to be a line."""
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit):
        main(["plan", "--help", "all"])
    text = capsys.readouterr().out
    assert all(f"  {recipe.name:12}{recipe.summary}\n" in text for recipe in RECIPES.values())
    assert f"{', '.join(OPTIMIZERS)}\n" in text.replace(",\n  ", ", ")
    options = plan_options()
    assert tuple(options["--recompute"]) == tuple(Recompute)
    assert tuple(options["--attention"]) == tuple(ATTENTIONS)
    assert tuple(options["--host"]) == tuple(Host)
    assert tuple(options["--pace"]) == tuple(PACES)
    assert tuple(options["--kernels"]) == tuple(Implementation)
    assert tuple(options["--largest"]) == tuple(LARGEST)


def plan_options() -> dict[str, Any]:
    """The choices of every option that has some."""
    import argparse

    top = argparse.ArgumentParser()
    plan.add_parser(top.add_subparsers())
    parser = top._subparsers._group_actions[0].choices["plan"]  # type: ignore[union-attr, index]
    return {
        action.option_strings[0]: action.choices for action in parser._actions if action.choices
    }


# What is wrong -------------------------------------------------------------------------------

WRONG = {
    "no model": ((), "Missing model:"),
    "no such model": (("llama-9",), "llama"),
    "no such file": (("nowhere/config.json",), "nowhere/config.json"),
    "two models": (("7B", "--parameters", "8B"), "MODEL and --parameters both describe"),
    "half a shape": (("--layers", "12"), "--width, --heads, --vocabulary"),
    "no chip of that name": (("7B", "--gpus", "8xH1000"), "No chip is called 'H1000'"),
    "no chips": (("7B", "--tokens-per-s", "1K"), "--gpus 1024xH100-SXM"),
    "no mfu": (("7B", "--tokens", "1T", "--deadline", "14d", *EIGHT), "--mfu 0.4"),
    "no room": (("--gpus", "RTX-4090", "--deadline", "1y"), "The largest that fits: --largest"),
    "no bfloat16": (
        ("7B", "--tokens", "1T", "--gpus", "V100-SXM-16GB", "--mfu", "0.4"),
        "V100-SXM-16GB has no peak for bfloat16",
    ),
    "no scales of blocks": (
        ("llama-3-8b", *EIGHT, "--recipe", "mxfp8"),
        "H100-SXM multiplies no blocks with scales of their own",
    ),
    "beyond learned positions": (
        ("gpt2", *EIGHT, "--sequence", "2048"),
        "GPT-2 124M has learned 1024 positions, fewer than 2048 tokens: give --sequence 1024",
    ),
    "two questions": (
        ("7B", *EIGHT, "--search", "--largest", "batch"),
        "--largest and --search are separate questions",
    ),
    "a budget of nothing": (("7B", "--budget", "1M"), "--gpus 8xH100-SXM (on how many tokens?)"),
    "faster than it can be": (
        ("llama-3-70b", *EIGHT, "--tokens-per-s", "1M"),
        "of the peak of 8 H100-SXM",
    ),
    "memory of nothing": (("7B", "--memory", "80GB"), "--memory needs a chip"),
    "batch that cannot be cut": (
        ("llama-3-8b", *EIGHT, "--batch", "9", "--micro-batch", "1"),
        "--batch 9 does not divide",
    ),
    "nothing fits": (
        ("llama-3-405b", "--gpus", "RTX-4090", "--search", "--sequence", "1024"),
        "too much",
    ),
    "not one sequence": (
        ("llama-3-70b", "--gpus", "RTX-4090", "--largest", "batch"),
        "out of memory: one sequence",
    ),
    "no such layout": (
        ("llama-3-8b", *EIGHT, "--layout", "gone.json"),
        "gone.json: cannot be read",
    ),
    "two frameworks": (
        ("llama-3-8b", *EIGHT, "--megatron", "a", "--deepspeed", "b"),
        "--megatron and --deepspeed: give one at a time",
    ),
    "not DeepSpeed's": (
        ("llama-3-8b", *EIGHT, "--batch", "8", "--layout", "tp 8", "--deepspeed", "-"),
        "DeepSpeed cannot express all of",
    ),
    "shapes are needed": (("7B", "--optimizer", "adafactor"), "depends on the weights' shapes"),
}


@pytest.mark.parametrize("key", WRONG)
def test_an_error_says_what_now(key: str, capsys: Capture) -> None:
    arguments, said = WRONG[key]
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tally: ")
    assert said in " ".join(captured.err.split())


@pytest.mark.parametrize(
    ("option", "text", "said"),
    [
        ("--tokens", "many", "is not a count"),
        ("--mfu", "0", "must be above 0"),
        ("--tokens", "0", "not above 0"),
        ("--parameters", "1.5", "not a whole number"),
        ("--memory", "80Gb", "not a size in bytes"),
        ("--peak", "fast", "not a speed in FLOP/s"),
        ("--deadline", "soon", "is not a length of time"),
        ("--budget", "-1", "is not an amount of US dollars"),
        ("--mfu", "50", "between 0 and 1"),
        ("--tokens-per-s", "0", "not above 0"),
        ("--price", "free", "not the price"),
        ("--recipe", "sixteen", "Choose from: fp32, tf32"),
        ("--largest", "loss", "Choose from: model, batch, sequence."),
    ],
)
def test_a_value_that_is_none(option: str, text: str, said: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["plan", "7B", f"{option}={text}"])
    assert exit_info.value.code == 2
    assert said in capsys.readouterr().err
