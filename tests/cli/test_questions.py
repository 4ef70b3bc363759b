"""Sixteen questions that people ask, each one command, beside a sum done by hand.

Nothing here comes from the planner: shapes are the models' config.json, peaks the data sheets'.
"""

import json
import shlex
from pathlib import Path

import pytest

from torchtally.cli import main

Capture = pytest.CaptureFixture[str]

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
DAY_S, HOUR_S, GIB = 86400, 3600, 1 << 30
H100, H100_FP8, A100, B200 = 989.4e12, 1978.9e12, 312e12, 2250e12
RTX_A4000 = 76.7e12

# Llama 3 8B: matrices of 32 layers and the head, 6 FLOPs each, and 12 L d s of attention.
LAYER_8B = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
MATRICES_8B = 32 * LAYER_8B + 128256 * 4096


def flops_8b(sequence: int) -> float:
    return 6 * MATRICES_8B + 12 * 32 * 4096 * sequence


LAYER_70B = 2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28672
FLOPS_70B = 6 * (80 * LAYER_70B + 128256 * 8192) + 12 * 80 * 8192 * 8192

# DeepSeek-V3: latent attention in 61 layers, 3 dense layers, 58 with 8 + 1 experts and a router.
LATENT = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
EXPERTS = 9 * 3 * 7168 * 2048 + 256 * 7168
ACTIVE_V3 = 61 * LATENT + 3 * 3 * 7168 * 18432 + 58 * EXPERTS + 129280 * 7168


def flops_v3(sequence: int) -> float:
    return 6 * ACTIVE_V3 + 6 * 61 * 128 * (192 + 128) * sequence


# Qwen2.5 14B: both widths of every matrix of a layer; in 4 bits with a float32 scale for 64.
WIDTHS_14B = 2 * (5120 + 5120) + 2 * (5120 + 1024) + 3 * (5120 + 13824)
MATRICES_14B = 48 * (2 * 5120 * 5120 + 2 * 5120 * 1024 + 3 * 5120 * 13824)
WIDE_14B = 2 * 152064 * 5120 + (2 * 48 + 1) * 5120 + 48 * (5120 + 2 * 1024)

QUESTIONS = {
    "llama-3-8b --tokens 1T --gpus 64xH100-SXM --mfu 0.4": {
        "training time": flops_8b(8192) * 1e12 / (64 * H100 * 0.4)
    },
    "--gpus 8xH100-SXM --deadline 14d": {
        "tokens/s": lambda of: of["compute-optimal tokens"] / (14 * 24 * HOUR_S),
        "compute-optimal tokens": lambda of: 20 * of["compute-optimal parameters"],
    },
    "qwen-2.5-14b --lora 16 --weights nf4 --recompute full --gpus RTX-4090 --sequence 2048": {
        "trained parameters": 48 * 16 * WIDTHS_14B,
        "frozen weights": MATRICES_14B * (0.5 + 4 / 64) + 2 * WIDE_14B,
    },
    "llama-3.1-8b --inference --context 128K": {"KV cache": 2 * 32 * 8 * 128 * 2 * 131072},
    "7B --tokens 100B --mfu 0.4 --deadline 1mo": {
        "cost": 6 * 7e9 * 100e9 / (RTX_A4000 * 0.4) / HOUR_S * 0.15
    },
    "llama-3-8b --gpus 8xH100-SXM --sequence 4096 --recompute full --largest batch": {
        "sequences of all chips": 8 * 8,
        "MFU": lambda of: of["tokens/s"] * flops_8b(4096) / (8 * H100),
    },
    "llama-3-8b --tokens 1T --gpus 64xH100-SXM --mfu 0.4 --compare A100-SXM,B200": {
        "H100-SXM": flops_8b(8192) * 1e12 / (64 * H100 * 0.4),
        "A100-SXM": flops_8b(8192) * 1e12 / (64 * A100 * 0.4),
        "B200": flops_8b(8192) * 1e12 / (64 * B200 * 0.4),
    },
    'deepseek-v3 --gpus 2048xH800 --batch 15360 --sequence 4096 --layout "ep 64, pp 16, full"': {
        "MFU": lambda of: 15360 * 4096 / of["step"] * flops_v3(4096) / (2048 * H100)
    },
    "llama-3-8b --gpus 8xH100-SXM --tokens-per-s 60K": {
        "MFU": 60e3 * flops_8b(8192) / (8 * H100),
        "MFU, attention causal": 60e3 * (flops_8b(8192) + flops_8b(0)) / 2 / (8 * H100),
    },
    "llama-3-8b --gpus 8xH100-SXM --sequence 4096 --recipe fp8": {
        "MFU": lambda of: 8 * 4096 / of["step"] * flops_8b(4096) / (8 * H100_FP8)
    },
    "7B --gpus 64xA100-SXM --mfu 0.4 --budget 500K": {
        "tokens": 500e3 / 2.745 * HOUR_S * A100 * 0.4 / (6 * 7e9)
    },
    "llama-3-70b --inference --gpus 4xH100-SXM --weights fp8": {
        "KV cache of one sequence": 2 * 80 * 8 * 128 * 2 * (1024 + 256),
        "cost of 1M output tokens": lambda of: (
            4 * (2.95 + 4.29) / 2 * 1e6 / of["decode tokens/s"] / HOUR_S
        ),
    },
    "gemma-3-27b --inference --context 128K": {  # 52 layers see 1,024 tokens: 65 blocks of 16
        "KV cache": 2 * 16 * 128 * 2 * (52 * 1040 + 10 * 131072)
    },
    'llama-3-70b --gpus 64xH100-SXM --batch 128 --layout "fsdp, cp 2, mb 1x4, full"': {
        "MFU": lambda of: 128 * 8192 / of["step"] * FLOPS_70B / (64 * H100)
    },
    "--largest model --gpus 8xH100-SXM --recipe fp32": {
        "largest model": lambda of: of["memory of all chips"] / (4 + 4 + 8)
    },
    "deepseek-v3 --tokens 14.8T --gpus 2048xH800 --mfu 0.3": {
        "training time": flops_v3(8192) * 14.8e12 / (2048 * H100 * 0.3)
    },
}


def figures_of(line: str, capsys: Capture) -> dict[str, float]:
    """Figures by name, and what tables say in their first columns by the row's name."""
    assert main(["plan", *shlex.split(line), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    figures = {figure["name"]: figure["value"] for figure in answer["figures"]}
    for table in answer["tables"][:1]:
        for row in table["rows"]:
            name, value, *_ = row.values() if isinstance(row, dict) else row
            if isinstance(name, str):
                figures.setdefault(name, value)
    return figures


@pytest.mark.thorough(
    "the other questions; plan/questions/test_own_layout.py: this one searches 125,364 layouts",
    cases=(
        'deepseek-v3 --gpus 2048xH800 --batch 15360 --sequence 4096 --layout "ep 64, pp 16, full"',
    ),
)
@pytest.mark.parametrize("line", QUESTIONS)
def test_a_question_is_one_line_with_an_answer_by_hand(line: str, capsys: Capture) -> None:
    figures = figures_of(line, capsys)
    for name, by_hand in QUESTIONS[line].items():
        expected = by_hand(figures) if callable(by_hand) else by_hand
        assert figures[name] == pytest.approx(expected, rel=2e-3), name


def test_the_page_asks_the_same_questions() -> None:
    assert len(QUESTIONS) == 16
    asked = [row for row in PAGE.read_text().splitlines() if row.startswith("$ tally plan ")]
    assert [row.partition(" plan ")[2].partition(" | ")[0] for row in asked] == list(QUESTIONS)
