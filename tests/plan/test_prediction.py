"""Multi-token prediction beside transformers' own modules, and published checkpoints."""

import os
from dataclasses import replace
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.plan.config_cases import CASES
from torchtally.plan.activations.kept import head_activation_bytes, layer_activation_bytes
from torchtally.plan.activations.setting import setting_of
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.prediction import with_prediction
from torchtally.plan.architecture.weights import Group, layer_weights
from torchtally.plan.flops import token_flops
from torchtally.plan.parameters import parameters
from torchtally.plan.recipes import recipe

TOKENS, BATCH = 64, 2
EIGHTS = {"moe_intermediate_size": 24, "num_experts": 8, "n_routed_experts": 8}
"""Torch's grouped products want rows of 16 bytes."""
FAMILIES = ("deepseek_v3", "glm4_moe", "qwen3_next", "qwen2")


def built(
    case: str, modules: int, dtype: torch.dtype, attention: str = "eager"
) -> tuple[Model, Any, Any]:
    """Ours, transformers' model, and its prediction modules."""
    import transformers
    from transformers.modeling_layers import MtpModel

    model_type, keys = CASES[case]
    keys = keys | {name: size for name, size in EIGHTS.items() if keys.get(name)}
    ours = from_values(keys | {"model_type": model_type}, name=case, place="config.json")
    config = transformers.CONFIG_MAPPING[model_type](**keys)
    config.num_mtp_layers = modules
    if getattr(config, "layer_types", None):
        config.mtp_layer_types = ["full_attention"] * modules
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    predicting = MtpModel(theirs, modules).to(dtype)
    return with_prediction(ours, modules), theirs.to(dtype), predicting.train()


def logits_of(predicting: Any, at: int, state: torch.Tensor) -> torch.Tensor:
    """Of one module, for this state of every token."""
    ids, positions = torch.zeros(BATCH, TOKENS, dtype=torch.long), torch.arange(TOKENS)[None]
    output = predicting.forward_layer(at, state, positions, None, input_ids=ids, use_cache=False)
    logits: torch.Tensor = predicting.shared_head(output)
    return logits


def main_part(model: Model) -> Model:
    """Without its modules."""
    return replace(model, kinds=model.kinds[:-1])


@pytest.mark.parametrize("case", FAMILIES)
@pytest.mark.parametrize("modules", [1, 3])
def test_a_module_has_the_weights_of_transformers(case: str, modules: int) -> None:
    ours, _, predicting = built(case, modules, torch.float32)
    shapes = [tuple(p.shape) for p in predicting.layers.parameters()]
    expected = sum(weight.elements for weight in layer_weights(ours.kinds[-1], ours))
    assert sum(torch.Size(shape).numel() for shape in shapes) == expected
    assert shapes.count((ours.width, 2 * ours.width)) == modules


@pytest.mark.parametrize("case", FAMILIES)
def test_its_flops_are_those_that_torchs_counter_sees(case: str) -> None:
    ours, _, predicting = built(case, 2, torch.float32)
    state = torch.zeros(BATCH, TOKENS, ours.width)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        for at in range(2):
            logits_of(predicting, at, state)
    counted = counter.get_total_flops() / (BATCH * TOKENS)
    with_modules, without = (
        token_flops(model, TOKENS).forward.value for model in (ours, main_part(ours))
    )
    experts = [w for w in layer_weights(ours.kinds[-1], ours) if w.group is Group.EXPERTS]
    unseen = 2 * float(sum(weight.active_elements for weight in experts))  # grouped products
    assert with_modules - without == counted + unseen


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("case", FAMILIES)
def test_around_its_layer_it_keeps_what_autograd_keeps(case: str, dtype: str) -> None:
    """To the byte, but for the state, which the model keeps before."""
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    ours, theirs, predicting = built(case, 1, kind, "sdpa")
    state = torch.zeros(BATCH, TOKENS, ours.width, dtype=kind, requires_grad=True)
    known = {
        tensor.data_ptr() for tensor in (*theirs.parameters(), *predicting.parameters(), state)
    }
    saved: dict[int, int] = {}
    inside = False

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if not inside and tensor.data_ptr() not in known:
            saved[tensor.data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def cross(*_: Any) -> None:
        nonlocal inside
        inside = not inside

    block = predicting.layers[0].mtp_block
    block.register_forward_pre_hook(cross)
    block.register_forward_hook(cross)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = logits_of(predicting, 0, state)
    assert logits.requires_grad
    at = setting_of(ours, BATCH, TOKENS, recipe(dtype))
    module, layer = (
        layer_activation_bytes(at, replace(ours.kinds[-1], is_predicting=is_predicting)).value
        for is_predicting in (True, False)
    )
    behind = head_activation_bytes(replace(at, model=main_part(ours))).value - loss_tensors(ours)
    assert module - layer + behind == sum(saved.values())


def loss_tensors(model: Model) -> int:
    """Log-probabilities in float32, labels, the loss and its weight."""
    return BATCH * TOKENS * (4 * model.vocabulary + 8) + 8


CHECKPOINTS = {
    "deepseek-v3": 3_918_786_560 + 680_571_043_840,
    "glm-4.5": 358_337_791_296 - 90 * 160,
    "glm-4.5-air": 110_468_824_832 - 46 * 128,
    "qwen3-next-80b-a3b": 81_324_862_720,
}
"""Numbers in the published files (huggingface.co/api/models, safetensors), but for scales and the
routers' biases, which are not trained. Each has one module."""
COPIED = {"deepseek-v3", "glm-4.5", "glm-4.5-air"}
"""Embedding and head are there once more."""


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_published_checkpoints_hold_one_module_to_the_number(name: str) -> None:
    model = known_model(name)
    copies = 2 * model.vocabulary * model.width * (name in COPIED)
    whole = parameters(with_prediction(model, 1)).total.value
    assert whole + copies == CHECKPOINTS[name]


def test_deepseek_v3_says_how_large_its_module_is() -> None:
    """14B of weights are the module's (README.md), 11.5B of them its own, of which, with the head,
    a token meets 1.5B (README_WEIGHTS.md).
    """
    model = known_model("deepseek-v3")
    more = parameters(with_prediction(model, 1))
    own = more.total.value - parameters(model).total.value
    head = model.vocabulary * model.width
    assert own == pytest.approx(11.5e9, rel=0.01)
    assert round((own + 2 * head) / 1e9) in (13, 14)
    met = more.active.value - parameters(model).active.value + head
    assert met == pytest.approx(1.5e9, rel=0.08)
