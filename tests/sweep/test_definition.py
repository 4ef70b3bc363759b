"""The sweep as plain data: names, checks, its file, and how two of them differ."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sweep.sweeps import TEACHER, definition
from torchtally.errors import UsageError
from torchtally.sweep.definition import Definition, define, difference, read_definition, short_names
from torchtally.train.keys import HINTS, changed_config, flag, read_changes, read_value, value_text

LANGUAGE = """\
steps = 10
batch = 8
[model]
preset = "llama-1m"
[data]
text = ["a.txt"]
[optimizer]
name = "muon"
"""

EVERYTHING: dict[str, Any] = {
    "task": "language",
    "steps": 12, "batch": 16, "micro_batch": 4, "sequence": 32, "seed": 3, "device": "cpu",
    "precision": "fp32", "compile": False, "clip_norm": None, "loss_chunk_tokens": 64,
    "on_nonfinite": "skip", "on_spike": "stop", "model.preset": "llama-1m", "model.layers": 2,
    "model.width": 64, "model.heads": 4, "model.kv_heads": 2, "model.ffn": 128,
    "model.vocabulary": 300, "model.context": 64, "model.norm": "layer",
    "model.positions": "learned", "model.activation": "gelu", "model.is_tied": True,
    "model.has_bias": False, "model.window": 16, "model.dropout": 0.1, "model.rope_theta": 5000.0,
    "model.rope_stretch.factor": 8.0, "model.rope_stretch.original_context": 16,
    "model.rope_stretch.low_factor": 0.5, "model.rope_stretch.high_factor": 2.0,
    "model.head_dim": 32, "model.has_qkv_bias": True, "model.has_qk_norm": True,
    "model.has_post_norms": True, "model.is_embedding_scaled": True, "model.global_every": 2,
    "model.local_rope_theta": 100.0, "model.query_scalar": 64, "model.logit_cap": 30.0,
    "model.experts": 4, "model.active_experts": 2, "model.init_std": 0.02,
    "model.norm_eps": 1e-6, "model.recompute": "full", "model.weights": "some/where",
    "model.code": None, "model.arguments": {},
    "teacher.dim": 8, "teacher.num_layers": 1, "data.train": ("a.bin", "b.bin"),
    "data.validation": ("c.bin",), "data.text": (), "data.dtype": "uint16",
    "data.weights": (0.5, 0.5), "data.documents": "masked", "data.document_start": 256,
    "data.targets": "masked", "data.order": "sequential", "data.stride": 16, "data.read": "copy",
    "optimizer.name": "muon", "optimizer.lr": 1e-05, "optimizer.weight_decay": 0.0,
    "optimizer.betas": (0.9, 0.95), "optimizer.eps": 1e-9, "optimizer.momentum": 0.8,
    "optimizer.nesterov": True, "optimizer.alpha": None, "optimizer.eps_inside_root": None,
    "optimizer.ns_steps": 4, "optimizer.adjust_lr_fn": "original", "optimizer.adamw_lr": 0.1,
    "optimizer.decayed_on": "all", "optimizer.implementation": "for-loop",
    "learning_rate.shape": "wsd", "learning_rate.warmup_steps": 2, "learning_rate.floor": 0.1,
    "learning_rate.decay_steps": 3, "learning_rate.decay_shape": "linear",
    "evaluation.every": 5, "evaluation.batches": 3, "evaluation.patience": 2,
    "sampling.every": 4, "sampling.tokens": 5,
    "sampling.prompt": "-def f, ", "sampling.temperature": 0.5, "sampling.top_k": 9,
    "log.every": 2, "log.to": ("tensorboard", "wandb"), "log.project": "mine",
    "log.numbers_every": 50,
    "profile.first_step": 1, "profile.steps": 2, "checkpoint.every": 3,
    "checkpoint.every_minutes": None, "checkpoint.at_end": False, "checkpoint.keep_last": 4,
    "checkpoint.keep_best": True,
    "checkpoint.keep_every": 5, "checkpoint.in_background": False,
    "checkpoint.follows_links": True, "parallel.strategy": "fsdp",
    "parallel.reshard_after_forward": False,
}  # fmt: skip
"""Every field of a config, most of them not at their defaults."""


def test_every_field_can_be_swept_over() -> None:
    assert set(EVERYTHING) == set(HINTS) - {"log.folder"}


@pytest.mark.parametrize("key", [*EVERYTHING])
def test_a_value_as_text_is_read_as_the_value(key: str) -> None:
    assert read_value(key, value_text(EVERYTHING[key])) == EVERYTHING[key]


def test_flags_give_the_config_that_was_checked() -> None:
    """What a run is started with means what the sweep has checked."""
    values = tuple(EVERYTHING.items())
    wanted = changed_config(LANGUAGE, "it", values)
    assert (
        changed_config(LANGUAGE, "it", read_changes([flag(*value) for value in values])) == wanted
    )
    assert read_changes([flag(key, value) for key, value in AWKWARD]) == AWKWARD


AWKWARD = tuple(
    ("sampling.prompt", text) for text in ('"', "[1]", "none", "--x=y z", "-", "\n", "'", "[")
)


def test_changes_are_written_in_several_ways() -> None:
    words = "--checkpoint.no-at-end --optimizer.weight-decay 0.5 --compile --data.train a.bin b.bin"
    more = "--optimizer.betas=0.9 0.95 --data.text --sampling.top_k=none --checkpoint.at_end true"
    assert read_changes(f"{words} {more}".split()) == (
        ("checkpoint.at_end", False), ("optimizer.weight_decay", 0.5), ("compile", True),
        ("data.train", ("a.bin", "b.bin")), ("optimizer.betas", (0.9, 0.95)), ("data.text", ()),
        ("sampling.top_k", None), ("checkpoint.at_end", True),
    )  # fmt: skip


def test_arguments_of_a_class_of_ones_own() -> None:
    words = "--model.arguments.width=8 --model.arguments.kind small --model.vocabulary 9"
    toml = LANGUAGE.replace('[model]\npreset = "llama-1m"', "").replace(
        "batch = 8", 'batch = 8\nmodel = "mine:Model"'
    )
    changes = (*read_changes(words.split()), ("model.context", 4))
    model = changed_config(toml, "it", changes).model
    assert (model.code, model.arguments) == ("mine:Model", {"width": 8, "kind": "small"})
    assert model.of_text() == (9, 4)


def test_names_say_what_varies() -> None:
    sweep = definition("optimizer.lr=0.01,1e-5", "steps=10", "optimizer.weight_decay=none,0.9")
    assert [point.name for point in sweep.points] == [
        "lr=0.01,weight_decay=none", "lr=0.01,weight_decay=0.9", "lr=1e-05,weight_decay=none",
        "lr=1e-05,weight_decay=0.9",
    ]  # fmt: skip
    assert sweep.varying_keys == ("optimizer.lr", "optimizer.weight_decay")
    assert [point.name for point in definition("steps=10").points] == ["run"]


def test_keys_are_as_short_as_they_can_be() -> None:
    assert short_names(["optimizer.lr", "learning_rate.shape"]) == {
        "optimizer.lr": "lr", "learning_rate.shape": "shape",
    }  # fmt: skip
    assert short_names(["evaluation.every", "log.every", "steps", "profile.steps"]) == {
        "evaluation.every": "evaluation.every", "log.every": "log.every", "steps": "steps",
        "profile.steps": "profile.steps",
    }  # fmt: skip


@given(st.lists(st.text(min_size=1, max_size=150), min_size=2, max_size=5, unique=True))
def test_names_are_folders_and_no_two_are_alike(prompts: list[str]) -> None:
    values = [(("sampling.prompt", prompt),) for prompt in prompts]
    names = [point.name for point in define("x", TEACHER, values, keeps_checkpoints=False).points]
    assert len({name.casefold() for name in names}) == len(prompts)
    for name in names:
        assert name.isascii()
        assert "/" not in name
        assert name[0] not in ".-"
        assert len(name) < 120


def test_a_config_that_cannot_be_is_refused_before_anything_runs() -> None:
    with pytest.raises(
        UsageError, match=r"optimizer.lr: expected a finite number, 0 or more, or none, got '-1'"
    ):
        definition("optimizer.lr=0.1,-1")
    with pytest.raises(
        UsageError, match=r"teacher.toml with micro_batch=5: micro_batch: expected 1 to 4"
    ):
        definition("micro_batch=4,5")
    with pytest.raises(UsageError, match="cannot be read as a config in TOML"):
        definition("steps=5", toml="steps = ")
    with pytest.raises(UsageError, match="optimizer: is a section"):
        definition("optimizer.lr=5", toml="optimizer = 3")


def test_its_file_reads_back() -> None:
    sweep = definition("optimizer.lr=0.01,1e-5", "clip_norm=none,inf", 'log.to=[],["wandb"]')
    again = read_definition(sweep.as_text(), "it")
    assert again == sweep
    assert difference(again, sweep) == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a sweep of format version 2"),
        ("[]", "is not a sweep of format version 2"),
        ("{}", "is not a sweep of format version 2"),
        ('{"format": "torchtally sweep"}', "is not a sweep of format version 2"),
        ('{"format": "torchtally sweep", "format_version": 1}', "Invalid enum value 1"),
        ("[" * 100_000, "is not a sweep of format version 2"),
    ],
)
def test_a_file_that_is_no_sweep(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_definition(text, "sweep.json")


@given(st.data())
def test_a_damaged_file_is_a_users_error(data: st.DataObject) -> None:
    """Any part of it replaced by anything: read, or refused with a message."""
    whole = json.loads(definition("optimizer.lr=0.01,1e-5").as_text())
    key = data.draw(st.sampled_from(sorted(whole)))
    whole[key] = data.draw(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda search_strategy: (
                st.lists(search_strategy, max_size=3)
                | st.dictionaries(st.text(max_size=5), search_strategy)
            ),
            max_leaves=5,
        )
    )
    plan_answer = answer(json.dumps(whole))
    if isinstance(plan_answer, str):
        assert "sweep.json" in plan_answer
    else:
        assert answer(plan_answer.as_text()) == plan_answer


def answer(text: str) -> Definition | str:
    """The definition, or why it is none."""
    try:
        return read_definition(text, "sweep.json")
    except UsageError as error:
        return str(error)


def test_differences_are_listed() -> None:
    there = definition("optimizer.lr=0.01,0.1")
    here = definition(
        "optimizer.lr=0.01,0.2",
        toml=TEACHER.replace("batch = 4", "batch = 8"),
        keeps_checkpoints=True,
    )
    assert difference(there, here).splitlines() == [
        "  batch: 4 there, 8 here",
        "  a run there alone: optimizer.lr=0.1",
        "  a run here alone: optimizer.lr=0.2",
        "  --keep-checkpoints: no there, yes here",
    ]
    many = definition("optimizer.lr=" + ",".join(map(str, range(50))))
    assert len(difference(there, many).splitlines()) == 8
