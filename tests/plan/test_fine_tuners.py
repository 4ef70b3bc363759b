"""Configuration files name the software, its facts and what is trained."""

from pathlib import Path

import pytest

from torchtally.cli import main
from torchtally.errors import UsageError
from torchtally.plan.frameworks.configuration import Configuration, configuration
from torchtally.plan.frameworks.fine_tuners import Adapters


def read(folder: Path, name: str, text: str) -> Configuration:
    path = folder / name
    path.write_text(text)
    return configuration(str(path), 32)


AXOLOTL = """\
base_model: NousResearch/Meta-Llama-3.1-8B
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 8
gradient_checkpointing: true
attn_implementation: flash_attention_2
fsdp_config:
  fsdp_version: 2
  reshard_after_forward: true
"""
LLAMA_FACTORY = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B
stage: sft
finetuning_type: full
deepspeed: examples/deepspeed/ds_z2_config.json
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
enable_liger_kernel: true
"""


def test_axolotl(tmp_path: Path) -> None:
    config = read(tmp_path, "fft.yaml", AXOLOTL)
    assert (config.framework, config.stack, config.sequence) == ("axolotl", "axolotl", 4096)
    assert config.words == "zero-3, mb 2x8, full"
    assert config.facts == {"attention": "fa2"}
    assert config.adapters is None


def test_llama_factory(tmp_path: Path) -> None:
    """Layers are recomputed unless the file says not."""
    config = read(tmp_path, "sft.yaml", LLAMA_FACTORY)
    assert (config.framework, config.stack, config.sequence) == ("LLaMA-Factory", "trainer", 2048)
    assert config.words == "zero-2, mb 1x2, full"
    assert config.facts == {"loss": "chunked"}
    plain = read(tmp_path, "none.yaml", LLAMA_FACTORY + "disable_gradient_checkpointing: true\n")
    assert plain.words == "zero-2, mb 1x2"


@pytest.mark.parametrize(
    ("lines", "adapters"),
    [
        ("adapter: qlora\nload_in_4bit: true\nlora_r: 32\n", Adapters(32, "nf4")),
        ("adapter: lora\nload_in_8bit: true\nlora_r: 16\n", Adapters(16, "int8")),
        ("adapter: lora\nlora_r: 16\n", Adapters(16, "")),
    ],
)
def test_adapters_of_axolotl(tmp_path: Path, lines: str, adapters: Adapters) -> None:
    assert read(tmp_path, "lora.yaml", AXOLOTL + lines).adapters == adapters


def test_adapters_are_asked_for_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lora.yaml"
    path.write_text(AXOLOTL + "adapter: lora\nlora_r: 16\n")
    words = ["plan", "llama-3.1-8b", "--gpus", "8xH100-SXM", "--layout", str(path)]
    assert main(words) == 2
    assert "trains adapters: add --lora 16, as it says" in capsys.readouterr().err
    assert main([*words, "--lora", "16"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "8 H100-SXM by axolotl; fits" in said
    assert "attention fa2 (its file)" in said


def test_a_file_of_deepspeed_whose_stage_is_unknown(tmp_path: Path) -> None:
    text = LLAMA_FACTORY.replace("ds_z2_config.json", "mine.json")
    with pytest.raises(UsageError, match=r"deepspeed: examples/deepspeed/mine.json does not say"):
        read(tmp_path, "sft.yaml", text)


def test_megatrons_arguments_say_what_overlaps(tmp_path: Path) -> None:
    """By default gradients wait for the last backward pass; of the stack's facts those that the
    arguments say are replaced.
    """
    text = "--tensor-model-parallel-size 2 --overlap-grad-reduce --cross-entropy-loss-fusion"
    config = read(tmp_path, "args.sh", text)
    assert config.stack == "megatron"
    assert config.facts == {"overlap.data": 1.0, "loss": "fused"}
    graphs = read(tmp_path, "graphs.sh", text + " --cuda-graph-impl local")
    assert graphs.facts["host"] == "graphs"


@pytest.mark.parametrize(("stage", "share"), [(2, 0.0), (3, 1.0)])
def test_deepspeed_overlaps_at_stage_3(tmp_path: Path, stage: int, share: float) -> None:
    config = read(tmp_path, "ds.json", f'{{"zero_optimization": {{"stage": {stage}}}}}')
    assert config.facts == {"overlap.data": share}


def test_torchtitan_without_compile(tmp_path: Path) -> None:
    layout = "[parallelism]\ntensor_parallel_degree = 2\n"
    plain = read(tmp_path, "plain.toml", layout)
    assert plain.facts == {"host": "eager", "kernels": "eager", "loss": "float32"}
    compiled = read(tmp_path, "compiled.toml", layout + "[compile]\nenable = true\n")
    assert compiled.facts == {"host": "compiled", "kernels": "fused", "overlap.tensor": 0.0}
