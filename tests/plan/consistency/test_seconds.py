"""A plan's seconds against a run's: who attends to whom, and what PyTorch makes of it.

Two or so layers of real width, of the families with windows and chunks, without, grouped, and with
a mask. Both predict, by the same roofline; what a plan leaves out of its passes over memory is what
differs.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.plan.consistency.references import Reference, maker
from tests.plan.consistency.test_reference_models import kept
from tests.plan.consistency.traced import train
from tests.plan.kept_activations import activations
from torchtally.chips import chip
from torchtally.chips.clusters import cluster
from torchtally.ledger import Ledger
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.architecture.model import Model, SelfAttention
from torchtally.plan.flops import token_flops
from torchtally.plan.optimizers import optimizer
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.pace import BEST
from torchtally.plan.parallel.pricing import step
from torchtally.plan.parallel.step import Step, Workload
from torchtally.plan.recipes import recipe
from torchtally.timing.roofline import Roofline
from torchtally.views.matrix_work import needed_flops, works_of
from torchtally.work.convention import Convention

PROMISED = 0.05
SEQUENCE, WINDOW = 4096, 1024
WIDE = {
    "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 8192, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}


def reference(kind: str, config: str, **sizes: Any) -> Reference:
    return Reference(maker(kind, config, **(WIDE | sizes)), batch=2, sequence=SEQUENCE)


MODELS = {
    "llama": reference("LlamaForCausalLM", "LlamaConfig"),
    "llama-ungrouped": reference("LlamaForCausalLM", "LlamaConfig", num_key_value_heads=16),
    "qwen3": reference("Qwen3ForCausalLM", "Qwen3Config"),
    "mistral": reference("MistralForCausalLM", "MistralConfig", sliding_window=WINDOW),
    "mistral-to-its-window": reference(
        "MistralForCausalLM", "MistralConfig", sliding_window=SEQUENCE
    ),
    "mistral-within-its-window": reference(
        "MistralForCausalLM", "MistralConfig", sliding_window=SEQUENCE + 1
    ),
    "gemma3": reference(
        "Gemma3ForCausalLM", "Gemma3TextConfig", **ALTERNATING, head_dim=256, num_attention_heads=8
    ),
    "llama4": reference(
        "Llama4ForCausalLM", "Llama4TextConfig", attention_chunk_size=WINDOW, num_local_experts=4,
        num_experts_per_tok=1, intermediate_size=4096, intermediate_size_mlp=8192,
        interleave_moe_layer_step=2,
    ),
}  # fmt: skip


def run(name: str, recipe_name: str, gpu: str) -> Ledger:
    traced = train(MODELS[name], recipe(recipe_name), gpu=gpu)
    return traced.ledger.with_predicted_times(Roofline(chip(gpu)))


def plan(name: str, recipe_name: str, gpu: str, model: Model | None = None) -> Step:
    shape, how = model or MODELS[name].model, recipe(recipe_name)
    workload = Workload(
        model=shape, cluster=cluster(f"1x{gpu}"), sequence=SEQUENCE, recipe=how,
        optimizer=optimizer("adamw"), pace=BEST,
    )  # fmt: skip
    kernel = usual_kernel(shape, how, SEQUENCE, Implementation.EAGER)
    return step(workload, Layout(micro_batch=2, kernel=kernel))


def differs(planned: Step, ledger: Ledger) -> float:
    assert ledger.step_s is not None
    return abs(planned.seconds.value / ledger.step_s - 1)


def check_flops(planned: Step, name: str, ledger: Ledger) -> None:
    """What MFU counts, to the last FLOP: a run knows a window by its mask's values. Causal, a mask
    counts with its whole diagonal, half of which the convention leaves out.
    """
    works = works_of(ledger.reported)
    is_masked = name.startswith(("mistral", "gemma3"))
    for attention in Convention:
        per_token = token_flops(MODELS[name].model, SEQUENCE, attention=attention)
        expected = per_token.model.value * 2 * SEQUENCE
        is_exact = attention is Convention.FULL or not is_masked
        assert needed_flops(works, attention) == pytest.approx(
            expected, rel=0 if is_exact else 1e-4
        )
    assert planned.mfu.value < 1


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize(
    ("name", "recipe_name", "gpu"),
    [
        *((name, "bf16", "H100-SXM") for name in MODELS),
        *((name, "amp", "H100-SXM") for name in ("llama", "mistral", "gemma3")),
        ("mistral", "bf16", "A100-SXM"),
        ("mistral", "fp32", "A100-SXM"),
        ("gemma3", "bf16", "RTX-4090"),
    ],
)
def test_a_plan_takes_as_long_as_a_run(name: str, recipe_name: str, gpu: str) -> None:
    planned, ledger = plan(name, recipe_name, gpu), run(name, recipe_name, gpu)
    # Autocast's gradients are converted to float32 one by one, which a plan has as bytes.
    assert differs(planned, ledger) < PROMISED
    if name != "llama4":  # whose modules run all experts on all tokens, which no trace can know
        check_flops(planned, name, ledger)


def test_a_mask_that_is_overlooked_is_seen() -> None:
    """As a kernel made for windows would run it, or without one."""
    ledger = run("mistral", "bf16", "A100-SXM")
    model = MODELS["mistral"].model
    (kind,) = model.kinds
    assert isinstance(kind.attention, SelfAttention)
    whole = replace(model, kinds=(replace(kind, attention=replace(kind.attention, window=None)),))
    assert differs(plan("mistral", "bf16", "A100-SXM", whole), ledger) > 2 * PROMISED


@pytest.mark.thorough
def test_experts_that_all_run_keep_what_all_are_given() -> None:
    """Llama 4's, and its norms of heads without weights: to a tenth of a percent."""
    reference, how = MODELS["llama4"], recipe("bf16")
    traced = train(reference, how)
    kept_tensors = activations(reference.model, reference.batch, reference.sequence, how)
    assert kept(kept_tensors) == pytest.approx(traced.kept_bytes, rel=1e-3)
