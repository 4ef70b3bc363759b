"""What a model's learned positions and a chip's products do not allow."""

from dataclasses import replace

import pytest

from torchtally.chips import Cluster, chip
from torchtally.errors import UsageError
from torchtally.plan.architecture.known import known_model
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.questions import Answer
from torchtally.plan.questions.fine_tuning import fine_tuning, largest_tuned_sequence
from torchtally.plan.questions.fit import NO_PROGRAM, fit
from torchtally.plan.questions.inference import inference
from torchtally.plan.questions.inference_memory import longest_context_served
from torchtally.plan.questions.largest import largest_sequence
from torchtally.plan.questions.request import Request, subject
from torchtally.plan.recipes import recipe

GPT2 = Request(
    subject=subject(known_model("gpt2")), cluster=Cluster(chip("H100-SXM")), recipe=recipe("bf16")
)
LLAMA = replace(GPT2, subject=subject(known_model("llama-3.2-1b")), sequence=1024)
ADAPTED = replace(GPT2, lora=8, weights=weight_format("bf16"))


def on(name: str, request: Request = LLAMA) -> Request:
    return replace(request, cluster=Cluster(chip(name)))


def figure(answer: Answer, name: str) -> float:
    return next(each.value for each in answer.figures if each.name == name)


@pytest.mark.parametrize(
    ("request_", "question", "figure_name"),
    [
        (GPT2, largest_sequence, "longest sequence"),
        (ADAPTED, largest_tuned_sequence, "longest sequence"),
        (replace(GPT2, inference=True), longest_context_served, "longest context"),
    ],
    ids=["training", "adapters", "inference"],
)
def test_the_longest_sequence_is_no_longer_than_learned_positions(
    request_: Request, question: object, figure_name: str
) -> None:
    assert callable(question)
    assert figure(question(request_), figure_name) == 1024


def test_a_prompt_and_its_answer_stay_within_learned_positions() -> None:
    served = replace(GPT2, inference=True)
    assert "of 768" in "".join(
        str(part) for part in inference(served).headline if type(part) is str
    )
    with pytest.raises(UsageError, match=r"1024 positions, fewer than 1152 tokens: give --context"):
        inference(replace(served, prompt=1024, generate=128))


def test_adapters_do_not_train_beyond_learned_positions() -> None:
    with pytest.raises(UsageError, match="fewer than 2048 tokens"):
        fine_tuning(replace(ADAPTED, sequence=2048))


@pytest.mark.parametrize("name", ["H100-SXM", "MI300X"])
@pytest.mark.parametrize("rank", [None, 8], ids=["all weights", "adapters"])
def test_scales_of_blocks_are_refused_by_chips_without_them(name: str, rank: int | None) -> None:
    question = fit if rank is None else fine_tuning
    with pytest.raises(UsageError, match="no blocks with scales of their own"):
        question(on(name, replace(LLAMA, recipe=recipe("mxfp8"), lora=rank)))


@pytest.mark.parametrize("name", ["B200", "MI355X"])
def test_scales_of_blocks_are_taken_by_chips_with_them(name: str) -> None:
    assert figure(fit(on(name, replace(LLAMA, recipe=recipe("mxfp8")))), "step") > 0


def test_an_answer_by_closed_forms_says_so_where_a_step_could_be_written() -> None:
    three = replace(LLAMA, cluster=Cluster(chip("H100-SXM"), 3, 3))
    assert NO_PROGRAM in fit(three).assumptions
    assert (
        NO_PROGRAM not in fit(replace(three, cluster=Cluster(chip("H100-SXM"), 2, 2))).assumptions
    )


def test_the_best_of_an_answer_is_no_slower_than_the_typical_one() -> None:
    answer = inference(replace(GPT2, inference=True))
    assert figure(answer, "best time per token") < figure(answer, "time per token")
