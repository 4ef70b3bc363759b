"""A Hugging Face `Trainer` script, run as a person would: unmodified, by `tally run`.

B: batch.  S: sequence.  T = B*S tokens.  d: width.  f: feed-forward width.  V: vocabulary.
L: layers.  H: heads.  K: key and value heads.  D: head dim.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.warm import TALLY, warm
from torchtally.trace.storage import allocated_bytes

B, S, d, f, V, L, H, K, D = 2, 64, 128, 256, 1000, 2, 4, 2, 32
T = B * S
STEPS = 2

SCRIPT = f"""\
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(
    vocab_size={V}, hidden_size={d}, intermediate_size={f}, num_hidden_layers={L},
    num_attention_heads={H}, num_key_value_heads={K},
)
rows = torch.randint(0, {V}, (64, {S}))
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(
        output_dir="out",
        per_device_train_batch_size={B},
        gradient_accumulation_steps=int(sys.argv[2]),
        max_steps=20,
        bf16=True,
        gradient_checkpointing=True,
        dataloader_num_workers=int(sys.argv[1]),
        logging_steps=1,
        save_steps=1,
        report_to="none",
    ),
    train_dataset=[{{"input_ids": row, "labels": row}} for row in rows],
)
trainer.train()
"""


def tally_run(folder: Path, *arguments: object) -> dict[str, Any]:
    """The report of a run of the script, which must end well."""
    (folder / "train.py").write_text(SCRIPT)
    command = [
        *warm(TALLY), "run", "train.py", "--gpu", "H100-SXM",
        "--steps", str(STEPS), "-o", "run.tally", "--json", "report.json", *map(str, arguments),
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


LAYERS = L * 2 * T * (d * H * D + 2 * d * K * D + H * D * d + 3 * d * f)
HEAD = 2 * T * d * V
ATTENTION = L * 4 * B * H * S * S * D
LAST_PRODUCTS = L * 2 * T * f * d
"""Recomputation stops before a layer's last product: its input was the last thing missing."""

SHAPES = [
    *2 * [(V, d)],
    *L * [(d, H * D), (d, K * D), (d, K * D), (H * D, d), (d, f), (d, f), (f, d), (d,), (d,)],
    (d,),
]
PARAMETERS = sum(n[0] * n[-1] if len(n) > 1 else n[0] for n in SHAPES)
PARAMETER_BYTES = sum(allocated_bytes(4 * (n[0] * n[-1] if len(n) > 1 else n[0])) for n in SHAPES)

COUNTER_BYTES = allocated_bytes(4)
"""Fused AdamW, the Trainer's default, counts each tensor's steps on the device."""


def test_a_trainer_script_in_bf16_with_checkpointing(tmp_path: Path) -> None:
    workers, micro_batches = 1, 2
    report = tally_run(tmp_path, workers, micro_batches)
    assert (report["ending"]["kind"], report["steps"]) == ("steps", STEPS)
    assert report["coverage"]["uncounted"] == []
    assert report["parameters"] == PARAMETERS

    ops = {op["operator"]: op["flops"] for op in report["ops"]}
    once = (LAYERS + HEAD) + 2 * (LAYERS + HEAD) + (LAYERS - LAST_PRODUCTS)
    assert ops["aten.mm"] == micro_batches * once
    attention = sum(flops for name, flops in ops.items() if "scaled_dot_product" in name)
    assert attention == micro_batches * (ATTENTION + 5 * ATTENTION // 2 + ATTENTION)
    assert report["totals"]["flops_matmul"] == ops["aten.mm"] + attention

    at_peak = report["memory"]["at_peak"]
    assert at_peak["parameters"] == PARAMETER_BYTES
    assert at_peak["optimizer_state"] == 2 * PARAMETER_BYTES + len(SHAPES) * COUNTER_BYTES
    assert sum(at_peak.values()) == report["memory"]["peak_allocated_bytes"]

    for column in ("flops_forward", "flops_backward", "flops_recompute"):
        total = report["totals"][column]
        assert sum(line[column] for line in report["lines"]) == total
        assert sum(module[column] for module in report["modules"]) == total
    lines = {line["source"]: line for line in report["lines"]}
    (query,) = (line for source, line in lines.items() if "self.q_proj(" in source)
    assert query["file"].endswith("transformers/models/llama/modeling_llama.py")
    assert query["flops_forward"] == micro_batches * L * 2 * T * d * H * D
    assert report["lines_below"]["source"] == "trainer.train()"
    own = lines["trainer.train()"]["flops_forward"]  # the loss's division, say
    assert 1000 * own < report["totals"]["flops_forward"]
    assert (tmp_path / "run.tally").stat().st_size > 0
    assert (tmp_path / "run.tally.files" / "out" / "checkpoint-1").is_dir()
    assert not (tmp_path / "out").exists()
