"""`tally plan --inference`: answers of one line, and errors that name the option."""

import json
from typing import Any

import pytest

from torchtally.cli import main

Capture = pytest.CaptureFixture[str]
LLAMA = ("llama-3-8b", "--inference")
H100 = ("--gpus", "H100-SXM")


def out(capsys: Capture, *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def document(capsys: Capture, *words: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(out(capsys, *words, "--json"))
    return answer


def figures(capsys: Capture, *words: str) -> dict[str, float]:
    return {figure["name"]: figure["value"] for figure in document(capsys, *words)["figures"]}


def test_the_cache_at_128k(capsys: Capture) -> None:
    """Llama 3.1 8B: 32 layers, 8 heads of 128 numbers, keys and values, 2 bytes each."""
    by_name = figures(capsys, "llama-3.1-8b", "--inference", "--context", "128K")
    assert by_name["KV cache"] == 131072 * 32 * 8 * 128 * 2 * 2
    assert by_name["KV cache of one token"] == 32 * 8 * 128 * 2 * 2


def test_a_window_keeps_its_cache_short(capsys: Capture) -> None:
    tables = document(capsys, "gemma-3-27b", "--inference", "--context", "128K")["tables"]
    kept = {row["attention"]: row["tokens"] for row in tables[0]["rows"]}
    assert sorted(kept.values()) == [1024 + 16, 131072]


def test_eight_bits_are_faster_and_smaller(capsys: Capture) -> None:
    wide, narrow = (
        figures(capsys, *LLAMA, *H100, "--weights", name, "--kv-cache", kept)
        for name, kept in (("bf16", "bf16"), ("fp8", "fp8"))
    )
    assert narrow["time per token"] < wide["time per token"]
    assert narrow["memory"] < wide["memory"]
    assert narrow["KV cache of one sequence"] < 0.51 * wide["KV cache of one sequence"]


def test_what_fits_is_what_is_said_to_fit(capsys: Capture) -> None:
    line = (*LLAMA, *H100, "--context", "8K")
    most = int(figures(capsys, *line)["sequences that fit at once"])
    assert figures(capsys, *line, "--largest", "batch")["sequences at once"] == most
    assert "does not fit" not in out(capsys, *line, "--batch", str(most))
    assert "does not fit" in out(capsys, *line, "--batch", str(most + 1))


def test_reading_and_writing_are_paid_by_the_hour(capsys: Capture) -> None:
    by_name = figures(capsys, *LLAMA, *H100, "--price", "3.6", "--batch", "16")
    a_second = 3.6 / 3600
    written = by_name["decode tokens/s"]
    read = by_name["prefill tokens/s"]
    assert by_name["cost of 1M output tokens"] == pytest.approx(a_second / written * 1e6)
    assert by_name["cost of 1M input tokens"] == pytest.approx(a_second / read * 1e6)


def test_figures_can_be_limited(capsys: Capture) -> None:
    line = ("plan", *LLAMA, *H100, "--assert")
    assert main([*line, "time-per-token < 10ms"]) == 0
    assert main([*line, "time-per-token < 1ms"]) == 3


def test_chips_beside_each_other(capsys: Capture) -> None:
    table = document(capsys, *LLAMA, *H100, "--compare", "A100-SXM,B200")["tables"][0]
    times = {row["chip"]: row["figure_time_per_token"] for row in table["rows"]}
    assert times["B200"] < times["H100-SXM"] < times["A100-SXM"]


def test_the_best_is_no_slower(capsys: Capture) -> None:
    typical, best = (
        figures(capsys, *LLAMA, *H100, "--pace", pace)["time per token"]
        for pace in ("typical", "best")
    )
    assert best < typical


def test_a_models_own_module_guesses(capsys: Capture) -> None:
    """DeepSeek-V3 writes 1.8 times as many tokens where 85 to 90 % of guesses are accepted
    (arXiv 2412.19437, section 5.4.3): of 1.85 a round, what guessing and checking leave.
    """
    where = ("deepseek-v3", "--inference", "--gpus", "4x8xH800-SXM", "--weights", "fp8-block",
             "--layout", "dp 32, ep 32", "--batch", "2048")  # fmt: skip
    plain = figures(capsys, *where)
    guessing = figures(capsys, *where, "--mtp", "1", "--acceptance", "0.85")
    assert 1.5 < plain["time per token"] / guessing["time per token"] < 1.85
    assert guessing["KV cache of one sequence"] == plain["KV cache of one sequence"] * 62 / 61
    assert guessing["memory"] > plain["memory"]


def test_programs_are_known_by_their_names(capsys: Capture) -> None:
    assert figures(capsys, *LLAMA, *H100, "--engine", "vllm") == figures(capsys, *LLAMA, *H100)


def test_a_number_of_parameters_takes_an_assumed_shape(capsys: Capture) -> None:
    assert "Assumed vocabulary" in out(capsys, "7B", "--inference", *H100)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batch", "3", "--layout", "dp 1", "--context", "9", "--prompt", "9"), "--context 9"),
        (("--prompt", "9", "--generate", "9", "--context", "9"), "two of the three"),
        (("--layout", "tp 2"), "tp 2 x dp 1 is 2 chips"),
        (("--layout", "pp 2"), "pipelines"),
        (("--search",), "separate questions"),
        (("--guesses", "2"), "need a draft model"),
        (("--draft", "gpt2", "--acceptance", "1"), "below 1"),
        (("--draft", "nosuch"), "nosuch"),
        (("--draft", "gpt2", "--mtp", "1"), "both draft tokens"),
        (("--engine", "eager", "--kv-block", "2"), "does not page its KV cache"),
        (("--largest", "model"), "--largest batch"),
        (("--largest", "sequence", "--context", "9"), "leave --context out"),
        (("--tokens", "1T"), "--tokens changes nothing"),
        (("--peak", "1e15"), "--peak applies to training only"),
    ],
)
def test_errors_name_the_option(words: tuple[str, ...], message: str, capsys: Capture) -> None:
    assert main(["plan", *LLAMA, *H100, *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("llama-3-8b", "--prompt", "9"), "add --inference"),
        (("llama-3-8b", "--inference", "--layout", "tp 2"), "need chips"),
        (("llama-3-70b", "--inference", *H100, "--largest", "batch"), "out of memory"),
        (("llama-3-70b", "--inference", *H100, "--largest", "sequence"), "out of memory"),
        (("llama-3-8b", "--inference", "--gpus", "2xH100-SXM", "--engine", "llama.cpp"),
         "planned on one chip"),
        (("gpt2", "--inference", "--gpus", "8xH100-SXM", "--batch", "3"), "multiple of 2"),
        (("llama-3-8b", "--inference", "--gpus", "8xH100-SXM", "--draft", "gpt2"), "12 heads"),
        (("--inference",), "Missing model"),
        (("7B", "--mtp", "1"), "--mtp needs the model's shape"),
        (("gpt2", "--mtp", "1", "--lora", "4"), "PEFT and TRL"),
        (("llama-3-8b", "--mtp", "1", *H100, "--torchtitan", "x.toml"), "torchtitan has no"),
    ],
)  # fmt: skip
def test_errors_of_other_questions(words: tuple[str, ...], message: str, capsys: Capture) -> None:
    assert main(["plan", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--weights", "q4_km"), "Did you mean q4_k_m"),
        (("--kv-cache", "fp9"), "Did you mean fp8"),
        (("--engine", "vlm"), "Did you mean vllm"),
    ],
)
def test_near_matches_of_names(words: tuple[str, ...], message: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["plan", *LLAMA, *H100, *words])
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
