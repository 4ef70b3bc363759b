"""`tally plan CONFIG -o FILE`: the step as a trace, written out of recordings."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from tests.programs.families import LLAMA
from torchtally import account
from torchtally.cli import main
from torchtally.memory import Category
from torchtally.programs.checked import differences
from torchtally.trace import Trace

Capture = pytest.CaptureFixture[str]
LLAMA_PARAMETERS = (
    2 * 1000 * 384 + 384 + 6 * (2 * 384 * 384 + 2 * 384 * 128 + 3 * 384 * 1024 + 2 * 384)
)
"""Embedding and head, a last norm, and in each layer attention, feed-forward and two norms."""
WORDS = ("--gpus", "H100-SXM", "--micro-batch", "2", "--sequence", "128", "--recipe", "bf16")


@pytest.fixture
def config(tmp_path: Path) -> str:
    return written(tmp_path, {})


def written(folder: Path, changes: dict[str, Any]) -> str:
    values = LLAMA | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | changes
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return str(path)


def test_it_is_shown_as_a_run_is(config: str, tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "plan.tally")
    assert main(["plan", config, *WORDS, "-o", file]) == 0
    page = capsys.readouterr()
    source = "6 layers of LlamaForCausalLM (torch "
    assert source in page.err
    assert source in " ".join(page.out.split())
    trace = Trace.load(file)
    assert trace.script.startswith(f"plan {config} --gpus H100-SXM")
    assert len(trace.step_ends) == 2
    assert main(["show", file, "--by", "line", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert "modeling_llama.py" in str(rows)
    assert "test_plan_trace.py" not in str(
        rows
    )  # what asked for the recording is none of its lines


@pytest.mark.parametrize("words", [(), ("--gpus", "8xH100-SXM")])
def test_it_is_recorded_once(
    words: tuple[str, ...],
    config: str,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = str(tmp_path / "plan.tally"), str(tmp_path / "again.tally")
    assert main(["plan", config, *WORDS, *words, "-o", first]) == 0
    assert "recorded before" not in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torchtally.models.planned", None)
    assert main(["plan", config, *WORDS, *words, "-o", second]) == 0
    assert "recorded before" in capsys.readouterr().err
    assert list(differences(Trace.load(second), Trace.load(first))) == [ANY]  # the note


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--recipe", "megatron"), "recipe megatron needs a library"),
        (("--recipe", "mixed", "--gpus", "2xH100-SXM", "--layout", "dp 2"), "on one GPU"),
        (("--gpus", "2xH100-SXM", "--layout", "dp 2, mb 2x2"), "with one micro-batch"),
        (("--gpus", "8xH100-SXM", "--layout", "dp 4/z3"), "is of 4 GPUs, and --gpus names 8"),
        (("--gpus", "8xH100-SXM", "--layout", "dp 4, pp 2"), "Leave pp out"),
        (("--gpus", "8xH100-SXM", "--layout", "dp 8/z1"), "but no z1"),
        (("--gpus", "8xH100-SXM", "--layout", "dp 4, tp 2"), "--layout 'dp 4/z3, tp 2'"),
        (("--recompute", "op"), "--recompute full, or none"),
        (("--optimizer", "lion"), "torch.optim has no lion"),
        (("--tokens", "1T"), "--tokens changes nothing"),
        (("--inference",), "one answer out, of which --sequence changes nothing"),
        (("--search",), "--search changes nothing"),
        (("--explain",), "--explain changes nothing"),
        (("--host", "graphs"), "--host compiled"),
        (("--host", "compiled", "--kernels", "fused"), "leave one of them out"),
        (("--layout", "dp 1, op"), "--recompute full, or none"),
        (("--layout", "dp 1, mlp"), "Leave mlp out of --layout"),
        (("--layout", "dp 1, offload 2"), "Leave offload 2 out of --layout"),
    ],
)
def test_what_it_does_not_write_is_refused(
    words: tuple[str, ...], message: str, config: str, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["plan", config, *WORDS, *words, "-o", str(tmp_path / "plan.tally")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_known_model_has_its_own_configuration(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "plan.tally")
    assert main(["plan", "gpt2-124m", *WORDS, "-o", file]) == 0
    assert "12 layers of GPT2LMHeadModel" in capsys.readouterr().err
    parameters = [each for each in Trace.load(file).storages if each.is_trained]
    assert sum(each.requested_bytes for each in parameters) == 2 * 124_439_808


def test_adapters_are_those_of_peft(config: str, tmp_path: Path) -> None:
    """In 6 layers 8 x (384 + 384) elements for queries, 8 x (384 + 128) for values, in float32."""
    file = str(tmp_path / "plan.tally")
    lora = ("--lora", "8", "--lora-targets", "q_proj,v_proj")
    assert main(["plan", config, *WORDS, *lora, "-o", file]) == 0
    trained = [each for each in Trace.load(file).storages if each.is_trained]
    assert sum(each.requested_bytes for each in trained) == 4 * 6 * 8 * (768 + 512)


def test_master_weights_are_copies_in_float32(config: str, tmp_path: Path) -> None:
    """Weights of 2 bytes, which no optimizer holds, and copies of 4 that it updates."""
    file = str(tmp_path / "plan.tally")
    assert main(["plan", config, *WORDS[:-1], "mixed", "-o", file]) == 0
    bytes_of = Counter[Category]()
    memory = account(Trace.load(file)).memory
    for storage, category in zip(memory.storages, memory.categories, strict=True):
        if storage.died is None:
            bytes_of[category] += storage.requested_bytes
    weights = bytes_of[Category.PARAMETERS]
    copies = bytes_of[Category.OPTIMIZER_STATE]
    assert 3 * 2 * weights <= copies < 3 * 2 * weights + 4 * 100  # and a step count for each tensor


def test_micro_batches_add_up_their_gradients(config: str, tmp_path: Path) -> None:
    flops = []
    for layout in ("dp 1, mb 2x1", "dp 1, mb 2x3"):
        file = str(tmp_path / "plan.tally")
        words = [*WORDS[:2], *WORDS[4:], "--layout", layout, "--replace", "-o", file]
        assert main(["plan", config, *words]) == 0
        flops.append(account(Trace.load(file)).total.flops_matmul)
    assert flops[1] == 3 * flops[0]


def test_a_layout_says_that_layers_are_recomputed(config: str, tmp_path: Path) -> None:
    """In words of --layout or by --recompute: the same operators."""
    said, option = str(tmp_path / "said.tally"), str(tmp_path / "option.tally")
    assert main(["plan", config, *WORDS, "--layout", "dp 1, full", "-o", said]) == 0
    assert main(["plan", config, *WORDS, "--recompute", "full", "-o", option]) == 0
    assert list(differences(Trace.load(said), Trace.load(option))) == []


def test_what_a_class_raises_is_of_that_class(tmp_path: Path, capsys: Capture) -> None:
    """transformers cannot split a head that is the embedding's weight."""
    config = written(tmp_path, {"tie_word_embeddings": True})
    layout = ("--gpus", "2xH100-SXM", "--layout", "dp 1, tp 2")
    file = str(tmp_path / "plan.tally")
    assert main(["plan", config, *WORDS, *layout, "-o", file]) != 0
    assert "LlamaForCausalLM: the class raised KeyError" in capsys.readouterr().err


def test_an_answer_has_a_prompt_and_tokens(config: str, tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "answer.tally")
    words = [*WORDS[:2], "--inference", "--prompt", "128", "--batch", "2", "-o", file]
    assert main(["plan", config, *words]) == 2
    assert "add --engine eager" in capsys.readouterr().err
    assert main(["plan", config, *words, "--engine", "eager"]) == 0
    assert "prefill 2 x 128 tokens" in capsys.readouterr().out


def test_a_target_that_the_class_does_not_have_is_named(
    config: str, tmp_path: Path, capsys: Capture
) -> None:
    lora = ("--lora", "8", "--lora-targets", "q_prj")
    assert main(["plan", config, *WORDS, *lora, "-o", str(tmp_path / "plan.tally")]) == 2
    assert "--lora-targets: PEFT rejects them" in capsys.readouterr().err


def test_a_model_without_a_configuration_is_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main(["plan", "gpt-3", *WORDS, "-o", str(tmp_path / "plan.tally")]) == 2
    assert "its sizes alone are known" in " ".join(capsys.readouterr().err.split())


def test_layers_of_several_kinds_are_run_one_by_one(tmp_path: Path, capsys: Capture) -> None:
    """Six layers in no order: no program has them, and the run of all of them is the answer."""
    changes = {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "layer_types": ["full_attention"] * 5 + ["sliding_attention"],
    }
    path, file = written(tmp_path, changes), str(tmp_path / "plan.tally")
    assert main(["plan", path, *WORDS, "-o", file]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "run with all its layers" in said
    assert "do not come again" in said
    modules = {site.module for site in Trace.load(file).sites}
    assert {f"model.layers.{layer}.mlp" for layer in range(6)} <= modules


@pytest.mark.parametrize(
    ("layout", "rank_bytes"),
    [("dp 8/z3", 2 * LLAMA_PARAMETERS // 8), ("dp 8", 2 * LLAMA_PARAMETERS)],
)
def test_eight_gpus_share_a_step(
    layout: str, rank_bytes: int, config: str, tmp_path: Path, capsys: Capture
) -> None:
    """A rank has an eighth of the weights, or all of them and sums of their gradients."""
    file = str(tmp_path / "plan.tally")
    words = (*WORDS, "--gpus", "8xH100-SXM", "--layout", layout)
    assert main(["plan", config, *words, "-o", file]) == 0
    assert "Rank 0 of 8" in capsys.readouterr().out
    trace = Trace.load(file)
    trained = [each for each in trace.storages if each.is_trained]
    assert sum(each.requested_bytes for each in trained) == rank_bytes
    sent = {trace.calls[op.call].name for op in trace.ops}
    gathers = "c10d._allgather_base_" in sent
    assert gathers == ("z3" in layout)
    assert gathers or "c10d.allreduce_" in sent


SHARDED = ("llama-3.2-1b", "--gpus", "8xH100-SXM", "--sequence", "1024", "--recipe", "mixed")


def test_a_layout_of_shards_says_its_batch_and_recomputation(tmp_path: Path) -> None:
    """In words of --layout or by options: the same operators, of a program that is shipped."""
    said, given = str(tmp_path / "said.tally"), str(tmp_path / "given.tally")
    assert main(["plan", *SHARDED, "--layout", "dp 8/z3, mb 2, full", "-o", said]) == 0
    assert main(["plan", *SHARDED, "--micro-batch", "2", "--recompute", "full", "-o", given]) == 0
    assert list(differences(Trace.load(said), Trace.load(given))) == []


def test_a_layout_of_other_gpus_is_refused_of_a_shipped_model(
    tmp_path: Path, capsys: Capture
) -> None:
    file = str(tmp_path / "plan.tally")
    assert main(["plan", *SHARDED, "--layout", "dp 4/z3", "-o", file]) == 2
    assert "is of 4 GPUs, and --gpus names 8" in capsys.readouterr().err


def test_shards_of_a_mixed_recipe_are_gathered_in_half_precision(
    config: str, tmp_path: Path, capsys: Capture
) -> None:
    """FSDP2's own mixed precision: a rank holds an eighth in float32, and sends it in bfloat16."""
    file = str(tmp_path / "plan.tally")
    words = [*WORDS, "--gpus", "8xH100-SXM", "--recipe", "mixed", "-o", file]
    assert main(["plan", config, *words]) == 0
    trace = Trace.load(file)
    trained = [each for each in trace.storages if each.is_trained]
    assert sum(each.requested_bytes for each in trained) == 4 * LLAMA_PARAMETERS // 8
    gathers = [each for each in trace.calls if each.name == "c10d._allgather_base_"]
    assert {spec.dtype for call in gathers for spec in call.inputs} == {"bfloat16"}


def test_compiled_layers_and_fused_blocks_take_less_than_operators(
    config: str, tmp_path: Path, capsys: Capture
) -> None:
    """The same products, fewer kernels; a layer's by itself are more than a whole layer's."""
    file = str(tmp_path / "plan.tally")
    counts = []
    for words in ((), ("--kernels", "fused"), ("--host", "compiled")):
        assert main(["plan", config, *WORDS, *words, "-o", file]) == 0
        ledger = account(Trace.load(file))
        kinds = [entry.kind for entry in ledger.kernels(ledger.reported) if not entry.kind.is_free]
        counts.append((sum(kind.is_matmul for kind in kinds), len(kinds)))
    eager, fused, compiled = counts
    assert eager[0] == fused[0] == compiled[0]
    assert eager[1] > fused[1]
    assert eager[1] > compiled[1]
    assert "kernels of layers compiled each by itself" in capsys.readouterr().err


@pytest.mark.thorough("test_compiled_layers_and_fused_blocks_take_less_than_operators")
def test_gpus_that_share_a_step_run_the_compiler(
    config: str, tmp_path: Path, capsys: Capture
) -> None:
    file = str(tmp_path / "plan.tally")
    layout = ("--gpus", "2xH100-SXM", "--layout", "dp 2/z3", "--host", "compiled")
    assert main(["plan", config, *WORDS, *layout, "-o", file]) == 0
    assert "each compiled by itself by PyTorch's own compiler" in capsys.readouterr().err
    trace = Trace.load(file)
    assert trace.world.size == 2
    assert any(call.name.startswith("inductor.") for call in trace.calls)
