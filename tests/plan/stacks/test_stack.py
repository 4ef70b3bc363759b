"""What is known of the software that runs a training, and how it is known."""

import json

import pytest

from torchtally.chips.clusters import cluster
from torchtally.cli import main
from torchtally.errors import UsageError
from torchtally.plan.activations.setting import Loss
from torchtally.plan.parallel.attention import ATTENTIONS
from torchtally.plan.parallel.pace import Host
from torchtally.plan.recipes import RECIPES
from torchtally.plan.stacks.stack import KNOBS, names, stack

VALUES: dict[str, set[str | bool]] = {
    "loss": set(map(str, Loss)),
    "gradients": {"bfloat16", "float32"},
    "fp8-weights": {True, False},
    "host": set(map(str, Host)),
    "kernels": {"eager", "fused"},
    "attention": set(ATTENTIONS),
    "recipe": set(RECIPES),
    "sequence-parallel": {True, False},
}


@pytest.mark.parametrize("name", names())
def test_every_fact_is_a_value_of_its_knob_and_says_how_it_is_known(name: str) -> None:
    known = stack(name, is_mixture=True)
    assert known.facts
    for knob, fact in known.facts.items():
        assert fact.origin.startswith(("read in ", "learnt from half A of "))
        if knob in VALUES:
            assert fact.value in VALUES[knob], knob
        else:
            assert 0 <= fact.value <= 1, knob


def test_what_is_not_known_is_listed() -> None:
    known = stack("torchtitan")
    words = known.in_words(replaced={"host"})
    absent = {knob for knob in KNOBS if knob not in known.facts}
    listed = words.partition("by default: ")[2].rstrip(".").split(", ")
    assert absent == set(listed)
    assert "host" not in words.partition(":")[2].partition("by default")[0].split()


def test_a_release_of_a_stack_without_releases_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no release of nanochat is known apart"):
        stack("nanochat:2026")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("torchtitan:nightly", "torchtitan:2026.04"),
        ("torchtitan:", "torchtitan:2026.04"),
        ("megatron-bridge:99", "megatron-bridge:25.11"),
        ("megatron-bridge:2026.06", "megatron-bridge:25.11"),
    ],
)
def test_what_is_no_release_is_refused(name: str, written: str) -> None:
    with pytest.raises(UsageError, match=f"they are written as {written}"):
        stack(name)


def test_a_fact_holds_from_its_release_on() -> None:
    """torchtitan computes its loss chunk by chunk since April 2026."""
    losses = [stack(name).value("loss") for name in ("torchtitan:2025.06", "torchtitan:2026.04")]
    assert losses == ["fused", "chunked"]
    assert stack("torchtitan").value("loss") == "chunked"


def test_a_mixture_runs_as_the_recipe_of_its_release() -> None:
    """Qwen3 235B on GB200s: graphs of attention in 26.02, of all since 26.06."""
    hosts = {
        release: stack(
            f"megatron-bridge:{release}", model="Qwen3 235B-A22B", is_mixture=True, chip="GB200",
            recipe="mxfp8",
        )
        for release in ("25.09", "26.02", "26.06")
    }  # fmt: skip
    assert [known.value("host") for known in hosts.values()] == ["eager", "dense-graphs", "graphs"]
    assert [known.overlap["expert"] for known in hosts.values() if "expert" in known.overlap] == [
        0.0,
        0.27,
    ]


LLAMA = ("plan", "llama-3-8b", "--gpus", "8xH100-SXM", "--sequence", "4096")


def test_the_answer_says_which_stack_was_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA, "--stack", "torchtitan"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "8 H100-SXM by torchtitan, " in said
    assert "Assumptions Stack: torchtitan (pytorch/torchtitan @b5bcd76): kernels fused" in said
    assert "kernels issued by a compiled host" in said


def test_what_is_of_a_layout_is_said_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3 on GB200s, whose recipe recomputes latent attention's up-projections."""
    words = ("plan", "deepseek-v3", "--gpus", "256xGB200", "--sequence", "4096", "--recipe",
             "mxfp8", "--stack", "megatron-bridge:26.06")  # fmt: skip
    assert main([*words, "--batch", "256"]) == 0
    assert "mla_up_proj" not in capsys.readouterr().out
    assert main([*words, "--batch", "4096", "--layout", "z1, pp 4x4, ep 64"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "micro-batch 1 x64, recompute mla_up_proj" in said
    assert "recompute-modules mla_up_proj (read in" in said


def test_an_option_replaces_a_fact(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LLAMA, "--stack", "torchtitan", "--host", "graphs", "--overlap", "data=0"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "kernels issued by CUDA graphs" in said
    assert "host compiled" not in said
    assert "gradients and gathered parameters 0%" in said


def test_shares_of_an_unknown_degree_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*LLAMA, "--overlap", "tensr=1"])
    assert "'tensr' is unknown. Did you mean tensor?" in capsys.readouterr().err


def test_the_network_between_nodes_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    """MI350X: no source gives the cards of its nodes."""
    words = ("plan", "llama-3-8b", "--sequence", "4096", "--gpus", "16xMI350X")
    assert main([*words]) == 2
    assert "--network 8x400Gb/s" in capsys.readouterr().err
    assert main([*words, "--network", "8x400Gb/s"]) == 0
    assert main(["plan", "llama-3-8b", "--gpus", "8xH100-SXM", "--network", "400Gb/s"]) == 2
    assert "--network joins nodes, and 8 H100-SXM are one" in capsys.readouterr().err


def test_lora_takes_a_layout(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "llama-3-70b", "--gpus", "8xH100-SXM", "--batch", "8", "--sequence", "4096")
    assert main([*words, "--lora", "16", "--layout", "fsdp, full"]) == 0
    said = capsys.readouterr().out
    assert "fits: " in said
    assert main([*words, "--layout", "fsdp, full"]) == 0
    assert "does not fit: " in capsys.readouterr().out


def test_adapters_are_in_a_layout_as_without_one(capsys: pytest.CaptureFixture[str]) -> None:
    """By transformers' operators: one chip holds as much in both answers, to 1 %."""
    words = ["plan", "qwen3-0.6b", "--gpus", "H100-SXM", "--lora", "8", "--sequence", "2048"]
    held = []
    for layout in ((), ("--layout", "dp 1")):
        assert main([*words, *layout, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert "with adapters of rank 8" in answer["answer"]
        held.append(next(each["value"] for each in answer["figures"] if each["name"] == "memory"))
    assert held[0] == pytest.approx(held[1], rel=0.01)


def test_a_host_far_ahead_is_no_part_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    """Compiled layers of 8 B parameters: by its formula it adds nanoseconds."""
    assert main([*LLAMA, "--stack", "torchtitan", "--layout", "dp 8/z3", "--json"]) == 0
    compared, parts, _ = json.loads(capsys.readouterr().out)["tables"]
    for table in (compared, parts):
        assert "host" not in {row["part"] for row in table["rows"]}


def test_nodes_of_mi300x_have_a_network() -> None:
    """Eight cards of 400 Gbit/s, one for each chip."""
    assert cluster("16xMI300X").link_between_nodes.bytes_per_s_per_direction == 50e9
