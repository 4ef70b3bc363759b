"""DPO and GRPO by hand, and against TRL's own trainers.

d 64, f 128 gated, V 128, four heads of 16, two layers: 4 d d + 3 d f = 40,960 weights in a layer.
Scores of a token that attends to S: 4 * d * S in each layer. P, C: tokens of prompt and answer.
"""

from typing import Any

import pytest

from tests.plan.test_by_hand import assert_same
from torchtally.plan.adapters import adapted_flops, adapter_of
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.shapes import by_hand
from torchtally.plan.preference import Answers, preference_flops
from torchtally.plan.questions import preference
from torchtally.trace import Phase

LAYERS, HEAD, SCORES = 2 * 40_960, 2 * 64 * 128, 2 * 4 * 64
P, C = 8, 6
SIZES: dict[str, Any] = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 128,
                         "num_hidden_layers": 2, "num_attention_heads": 4}  # fmt: skip


def small() -> Model:
    return by_hand(
        layers=2, width=64, heads=4, vocabulary=128, is_tied=False, feed_forward=128, is_gated=True
    )


def test_a_step_of_grpo() -> None:
    """Four answers: prompts read, five more passes, and all tokens trained."""
    step_flops = preference_flops(small(), Answers(4, P, C), generates=True, has_reference=False)
    prompts = P * (2 * LAYERS + SCORES * P) + HEAD
    passes = sum(2 * LAYERS + SCORES * keys + HEAD for keys in range(P + 1, P + C))
    assert_same(step_flops.generation, 4 * (prompts + passes))
    assert_same(step_flops.training, 4 * (14 * 3 * (2 * LAYERS + SCORES * 14) + C * 4 * HEAD))
    assert_same(step_flops.total, step_flops.generation.value + step_flops.training.value)


def test_seconds_and_bytes_of_a_step() -> None:
    """Prompts 2 s, and four more tokens; ten weights of 2 bytes on three chips."""
    assert_same(preference.generating_s(2.0, 5, 0.5), 2.0 + 4 * 0.5)
    assert_same(preference.reference_bytes(10, 2, 3), 7)


def test_a_step_of_dpo() -> None:
    """Two pairs, and a reference model: a forward pass more."""
    step_flops = preference_flops(small(), Answers(4, P, C), generates=False, has_reference=True)
    assert_same(step_flops.reference, 4 * (14 * (2 * LAYERS + SCORES * 14) + C * HEAD))
    assert_same(step_flops.generation, 0)


def test_adapters_leave_the_head_without_a_gradient() -> None:
    model = small()
    adapter = adapter_of(model, 4)
    step_flops = preference_flops(
        model, Answers(4, P, C), generates=False, has_reference=True, adapter=adapter
    )
    each = adapted_flops(model, adapter, 14).total.value - 2 * HEAD
    assert_same(step_flops.training, 4 * (14 * each + C * 3 * HEAD))


def words(number: int) -> str:
    return " ".join(f"word{n}" for n in range(number))


@pytest.fixture
def llama(tmp_path: Any) -> str:
    """Saved with a tokenizer of whole words."""
    import tokenizers
    import transformers

    names = {f"word{n}": n + 3 for n in range(100)} | {"<unk>": 0, "<s>": 1, "</s>": 2}
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<unk>"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=whole, pad_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(tmp_path)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    model.save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_trl_runs_as_many_flops(method: str, llama: str, tmp_path: Any) -> None:
    """Products of the steady step. cuDNN makes scores again, half of a forward pass's."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    from torchtally import account, run

    settings: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"), "per_device_train_batch_size": 4, "max_steps": 2,
        "report_to": "none", "bf16": True, "gradient_checkpointing": False,
    }  # fmt: skip

    def dpo() -> None:
        # With the token that ends them, answers have C tokens.
        rows = [
            {"prompt": words(P), "chosen": f" {words(C - 1)}", "rejected": f" {words(C - 1)}"}
        ] * 16
        settings["per_device_train_batch_size"] = 2
        trl.DPOTrainer(
            model=llama,
            train_dataset=datasets.Dataset.from_list(rows),
            args=trl.DPOConfig(**settings),
        ).train()

    def grpo() -> None:
        trl.GRPOTrainer(
            model=llama,
            train_dataset=datasets.Dataset.from_list([{"prompt": words(P)}] * 16),
            reward_funcs=lambda completions, **_: [1.0] * len(completions),
            args=trl.GRPOConfig(**settings, num_generations=4, max_completion_length=C),
        ).train()

    ledger = account(run(dpo if method == "dpo" else grpo, gpu="H100-SXM"))
    step_flops = preference_flops(
        small(), Answers(4, P, C), generates=method == "grpo", has_reference=method == "dpo"
    )
    again = 4 * 14 * SCORES * 14 // 2
    assert ledger.total.flops_matmul == step_flops.total.value + again
    generating = sum(
        entry.cost.flops
        for entry in ledger.reported
        if entry.op.phase in (Phase.PREFILL, Phase.DECODE) and entry.kind.is_matmul
    )
    assert generating == step_flops.generation.value
