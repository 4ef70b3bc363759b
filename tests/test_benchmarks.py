"""The benchmarks run, at a small size, and write the figures they promise."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    agent_log,
    compile_seconds,
    peer_models,
    peers,
    prime_rl_runs,
    published_kernels,
)
from tests.bench.small import bench_of_small_operators
from tests.builders import big_trace
from tests.warm import commands
from torchtally.timing.calibration import library

ROOT = Path(__file__).parents[1]


def figures(tmp_path: Path, benchmark: str, *arguments: str, python: str = "") -> dict[str, Any]:
    """By a warm Python, whose children are warm, unless another one is given."""
    file = tmp_path / "figures.json"
    python = python or str(commands() / "python")
    command = [python, "-m", f"benchmarks.{benchmark}", "--repeat", "1",
               "--json", str(file), *arguments]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(file.read_text())
    assert set(document["machine"]) == {"python", "torch", "platform", "cores", "date"}
    return document


def test_llama_70b(tmp_path: Path) -> None:
    """d = 8192: one layer's products and the head's, forward and twice that backward."""
    by_name = figures(tmp_path, "llama70b", "--layers", "1")
    T, d, f, kv, V, H, D = 4096, 8192, 28672, 1024, 128256, 64, 128
    products = 2 * T * (d * d + 2 * d * kv + d * d + 3 * d * f + d * V)
    attention = 4 * H * T * T * D
    (parts,) = by_name["from_python"]
    matmul = 3 * products + 7 * attention // 2
    assert matmul < parts["flops"] < 1.01 * matmul
    assert parts["operators"] > 100
    assert set(by_name["runs"]) == {
        "its imports alone", "tally run --steps 1", "tally run (2 steps)"
    }  # fmt: skip
    for (run,) in by_name["runs"].values():
        assert run["wall_s"] > 0
        assert run["cpu_s"] > 0
        assert run["peak_rss_bytes"] > 10_000_000


def test_against_the_flop_counter(tmp_path: Path) -> None:
    """On meta tensors attention is written out: four products backward, not a fused kernel's five.

    The fifth are the scores, recomputed: half of attention's forward FLOPs.
    """
    by_name = figures(tmp_path, "against_flop_counter", "--models", "gpt2-124m", "--layers", "1")
    (model,) = by_name["models"]
    assert set(model["steps"]) == {"meta", "flop_counter", "torchtally"}
    assert set(model["ratio"]) == {"first_wall_s", "first_cpu_s", "later_wall_s", "later_cpu_s"}
    assert all(ratio > 0 for ratio in model["ratio"].values())
    B, S, d = 4, 1024, 768
    scores = 2 * B * S * S * d
    assert model["flops"]["torchtally"] - model["flops"]["flop_counter"] == scores


@pytest.mark.thorough
def test_summary_against_the_flop_counter(tmp_path: Path) -> None:
    """As above: a fused kernel makes the scores again. Of a whole step, and of its two passes."""
    by_name = figures(tmp_path, "summary", "--models", "gpt2-124m", "--layers", "1")
    (model,) = by_name["models"]
    assert set(model["ratio"]) == {"step_wall_s", "step_cpu_s", "passes_wall_s", "passes_cpu_s"}
    assert all(ratio > 0 for ratio in model["ratio"].values())
    B, S, d = 4, 1024, 768
    scores = 2 * B * S * S * d
    assert model["flops"]["summary"] - model["flops"]["flop_counter"] == scores


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_summary_of_a_model_of_the_peers(tmp_path: Path) -> None:
    """Of a convolutional network nothing is computed twice: both count the same."""
    (model,) = figures(tmp_path, "summary", "--models", "resnet-50")["models"]
    assert model["flops"]["summary"] == model["flops"]["flop_counter"]


@pytest.mark.thorough
def test_start_up(tmp_path: Path) -> None:
    trace = tmp_path / "run.tally"
    big_trace(1000).save(str(trace))
    by_name = figures(tmp_path, "start_up", "--trace", str(trace), python=sys.executable)
    assert by_name["trace_file_bytes"] == trace.stat().st_size
    names = {"python -c pass", "tally --help", "tally show", "tally show --by line"}
    assert names <= set(by_name["runs"])
    for runs in by_name["runs"].values():
        assert [run["wall_s"] > 0 for run in runs] == [True]


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_compile_seconds(tmp_path: Path) -> None:
    """Forward and backward graph of one layer; nothing in the second step, and nothing of the
    compiler without torch.compile.
    """
    by_name = figures(tmp_path, "compile_seconds", "--layers", "1", python=sys.executable)
    assert by_name["missed"] == []
    for name in (compile_seconds.WHOLE, compile_seconds.LAYERS):
        (graphs, kernels), after_second = by_name["printed"][name]["so_far"]
        assert graphs == 1
        assert kernels > 10
        assert after_second == [graphs, kernels]
    assert by_name["printed"][compile_seconds.EAGER] == {"so_far": [[0, 0], [0, 0]], "modules": 0}


def test_limits_of_compiling_that_do_not_hold_are_named() -> None:
    eager = {"so_far": [[0, 0], [0, 0]], "modules": 3}
    once, again = ({"so_far": [[1, 5], [1, after]], "modules": 9} for after in (5, 7))
    names = (compile_seconds.EAGER, compile_seconds.WHOLE, compile_seconds.LAYERS)
    cpu_s = dict(zip(names, (3.0, 25.5, 8.0), strict=True))
    printed = dict(zip(names, (eager, once, again), strict=True))
    assert compile_seconds.misses(cpu_s, printed, compile_seconds.TARGETS_CPU_S) == [
        "GPT-2 124M, compiled took 25.50 s of CPU time, more than 25.00 s",
        "Llama, each layer compiled compiled in its second step, too",
        "GPT-2 124M, eager imported 3 modules of the compiler",
    ]


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_full_screen(tmp_path: Path) -> None:
    by_name = figures(tmp_path, "full_screen", "--layers", "1", "--steps", "2")
    assert set(by_name["runs"]) == {"tally view", "tally run", "tally run --watch"}
    for runs in by_name["runs"].values():
        assert [run["wall_s"] > 0 for run in runs] == [True]


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_compare_chips(tmp_path: Path) -> None:
    trace = tmp_path / "run.tally"
    big_trace(1000).save(str(trace))
    by_name = figures(tmp_path, "compare_chips", "--trace", str(trace), python=sys.executable)
    assert set(by_name["runs"]) == {
        "python -c pass", "the page", "one other chip", "three other chips"
    }  # fmt: skip
    assert by_name["target_wall_s"] == 1.0
    for runs in by_name["runs"].values():
        assert [run["wall_s"] > 0 for run in runs] == [True]


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_predicted_steps_stand_beside_measured_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this very machine, measured now. How near they are the benchmark judges, on a machine that
    does nothing else: tests share theirs.

    One thread: two that wait for each other while others compute measure nothing but that.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TALLY_CALIBRATIONS", str(tmp_path))
    measured = bench_of_small_operators()
    library.keep(measured)
    by_name = figures(tmp_path, "cpu_step_time", "--calibration", str(tmp_path), "--seconds", "0.2",
                    "--models", "perceptron, small")  # fmt: skip
    assert [model["name"] for model in by_name["models"]] == ["perceptron, small"]
    for model in by_name["models"]:
        assert model["measured_s"] > 0
        assert model["error"] == pytest.approx(model["predicted_s"] / model["measured_s"] - 1)
        assert model["calibrated_share"] > 0.9


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_monitor(tmp_path: Path) -> None:
    """How much it costs the benchmark judges, on a machine that does nothing else."""
    by_name = figures(tmp_path, "monitor")
    assert by_name["target_ratio"] == 1.01
    assert len(by_name["ratio"]) == len(by_name["step"]) == 3
    assert 0 < by_name["call_s"] < 1e-3


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_cluster_ranks(tmp_path: Path) -> None:
    by_name = figures(tmp_path, "cluster_ranks", "--layers", "1")
    assert (by_name["target_of_plain"], by_name["target_of_few"]) == (2.0, 1.1)
    assert by_name["of_plain"] > 0
    assert by_name["of_few"] > 0
    assert [len(runs) for runs in by_name["runs"].values()] == [1, 1, 1]


def test_published_times(tmp_path: Path) -> None:
    """The datasheet model beside what others measured: within 30 % in the median."""
    by_name = figures(tmp_path, "published_times")
    assert len(by_name["rows"]) > 100
    assert by_name["median_error"] < 0.3


@pytest.mark.thorough("test_a_document_holds: docs/kernels_by_chip.md is its whole table")
def test_published_kernels() -> None:
    """Classes whose rules are settled stay where they are: half B, which gives no constant."""
    median_errors = {line[:2]: float(line[-1].rstrip("%")) for line in published_kernels.table()}
    assert len(published_kernels.rows()) > 6000
    assert len({chip for _, chip in median_errors}) == 7
    for chip in ("B200", "H100-SXM", "H200-SXM", "RTX-PRO-6000"):
        assert median_errors["products bfloat16, above 10 us", chip] < 11
    collectives = [line for line in median_errors if line[0].startswith("NCCL")]
    assert len(collectives) == 4 * 7
    assert all(median_errors[line] < 13 for line in collectives)
    small = [line for line in median_errors if line[0] == "products bfloat16, below 10 us"]
    assert len(small) == 7
    assert all(median_errors[line] < 15 for line in small)
    assert max(median_errors["attention", chip] for chip in ("A100-SXM", "H100-SXM")) < 17


def test_published_templates(tmp_path: Path) -> None:
    """Templates beside the library, as inductor timed them: half B had no part in constants."""
    by_name = figures(tmp_path, "published_templates")
    assert {table["half"] for table in by_name["tables"]} == {"A", "B"}
    assert max(table["error"] for table in by_name["tables"] if table["half"] == "B") < 0.15
    assert by_name["won"] <= by_name["products"]


@pytest.mark.thorough
def test_published_collectives(tmp_path: Path) -> None:
    """The network model beside what others measured: within 20 % in the median."""
    by_name = figures(tmp_path, "published_collectives")
    assert len(by_name["rows"]) > 150
    assert by_name["median_error"] < 0.2


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_allocator(tmp_path: Path) -> None:
    """The model takes more than counting alone, and both took something."""
    by_name = figures(tmp_path, "allocator", "--layers", "1")
    assert by_name["target_ratio"] == 1.3
    for model in by_name["models"]:
        assert all(cpu_s > 0 for times in model["cpu_s"].values() for cpu_s in times)
        assert model["ratio"] > 0


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_checkpoint_saving(tmp_path: Path) -> None:
    """12 bytes a parameter, counters and random states aside."""
    by_name = figures(tmp_path, "checkpoint_saving", "--layers", "1", "--steps", "1")
    width, ffn, vocabulary = 384, 1024, 257
    matrices = 4 * width * width + 3 * width * ffn + 2 * vocabulary * width
    assert 12 * matrices < by_name["state_bytes"] < 12.2 * matrices + 20_000
    assert set(by_name["rounds_s"]) == {
        "no checkpoint", "in the background", "in the foreground", "torch.save"
    }  # fmt: skip
    assert all(value > 0 for (value,) in by_name["rounds_s"].values())


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_peers(tmp_path: Path) -> None:
    """Three times the forward pass, and the scores that fused attention computes again: half of it.

    The rest, less than 1 %, are the operators that are not products.
    """
    document = figures(tmp_path, "peers", "--tools", "torchtally,FlopCounterMode")
    ours, counter = document["tools"]
    B, S, d, L = (document["sizes"][name] for name in ("batch_size", "context", "width", "layers"))
    products = 3 * document["forward_flops"]
    scores = L * 2 * B * S * S * d
    assert counter["flops"] == products  # on meta tensors attention is written out
    assert products + scores < ours["flops"] < 1.01 * (products + scores)
    assert ours["cpu_s"] > 0


@pytest.mark.thorough("a benchmark is run before its figures are printed anywhere")
def test_six_models_by_hand(tmp_path: Path) -> None:
    """To the last FLOP; the counter of torch, on meta tensors, has no rule for grouped products."""
    document = figures(tmp_path, "peer_models", "--tools", "torchtally,FlopCounterMode")
    by_hand = {model["name"]: model["forward_flops"] for model in document["models"]}
    counted, parameters = (
        {record["model"]: record[key] for record in document["tools"][0]["models"]}
        for key in ("flops", "parameters")
    )
    assert counted == by_hand
    assert parameters == {model["name"]: model["parameters"] for model in document["models"]}
    peer = {record["model"]: record["flops"] for record in document["tools"][1]["models"]}
    assert {name for name, flops in peer.items() if flops != by_hand[name]} <= {"MoE"}


def test_the_page_of_peers_has_the_stored_figures_of_other_tools() -> None:
    """All tools, all models, and no other figures than those of the last run."""
    results = json.loads(peer_models.RESULTS.read_text())
    table = peer_models.peer_models_table()
    page = (ROOT / "docs" / "peers.md").read_text()
    assert table in page
    assert peer_models.all_peer_models_table() in page
    assert [tool["name"] for tool in results["tools"]] == [tool.name for tool in peer_models.TOOLS]
    assert [model["forward_flops"] for model in results["models"]] == [
        model.forward_flops for model in peer_models.MODELS
    ]
    assert all(f"| {tool.name} |" in table for tool in peer_models.TOOLS)


def test_a_model_on_which_a_tool_fails_is_listed_with_the_reason() -> None:
    def fail(model: peer_models.PeerModel) -> peer_models.Ask:
        raise ValueError("no rule\nfor this")

    tool = peer_models.ModelTool("x", fail)
    record = peer_models.asked(tool, peer_models.MODELS[0], 1)
    assert record["problem"] == "fails: ValueError: no rule for this"
    assert peer_models.of_closed_form(record, 100) == "fails"
    assert peer_models.of_closed_form({"flops": 50}, 100) == "50.0 %"
    assert peer_models.of_closed_form({"flops": 100}, 100) == "100 %"


def test_a_peer_that_fails_is_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SystemExit("python -m x failed:\nTraceback\nValueError: no such step\n")

    monkeypatch.setattr(peers, "spent_on", refuse)
    tool = peers.Tool("x", peers.flop_counter, "module")
    assert peers.measured("python", tool, 1)["problem"] == "ValueError: no such step"


def test_a_log_is_off_by_what_lies_beyond_its_rounding() -> None:
    assert agent_log.off(1.762, 1.8) == 0.0
    assert agent_log.off(2.05, 1.8) == pytest.approx(0.2 / 1.8)
    assert agent_log.off(1.55, 1.8) == pytest.approx(0.2 / 1.8)


def test_the_page_shows_the_runs_of_prime_rl() -> None:
    assert prime_rl_runs.table() in (ROOT / "docs" / "trainings.md").read_text(encoding="utf-8")
    assert prime_rl_runs.runs().keys() == prime_rl_runs.published().keys()
