"""Modules that are recomputed by themselves, and activations that wait in the host's memory."""

from dataclasses import replace

import pytest

from tests.plan.parallel.builders import llama, mixture, workload
from torchtally.errors import UsageError
from torchtally.plan.activations.kept import layer_activation_bytes, working_activation_bytes
from torchtally.plan.activations.modules import MODULES
from torchtally.plan.activations.setting import Implementation, setting_of
from torchtally.plan.architecture.known import known_model
from torchtally.plan.parallel.degrees import invalidities, layout_in_short
from torchtally.plan.parallel.layout import Layout
from torchtally.plan.parallel.layout_words import parse_layout
from torchtally.plan.parallel.pricing import Pricing
from torchtally.plan.recipes import recipe

FUSED = Implementation.FUSED
BF16 = recipe("bf16")


def test_a_feed_forward_that_is_recomputed_keeps_its_input() -> None:
    """Six tokens of 20 inner numbers in 2 bytes: gate, up, and the input of the last projection."""
    model = llama(width=8, layers=3, heads=2, kv_heads=1, ffn=20, vocabulary=10)
    plain = setting_of(model, 2, 3, BF16, implementation=FUSED)
    again = replace(plain, modules=("mlp",))
    (kind,) = model.kinds
    spared = 3 * 6 * 20 * 2
    assert (
        layer_activation_bytes(plain, kind).value - layer_activation_bytes(again, kind).value
        == spared
    )
    assert working_activation_bytes(again).value == spared


def test_latent_queries_keys_and_values_are_most_of_an_attention() -> None:
    """DeepSeek-V3, 4,096 tokens of 128 heads: queries and keys of 192, values of 128 numbers."""
    model = known_model("DeepSeek-V3")
    plain = setting_of(model, 1, 4096, BF16, implementation=FUSED)
    again = replace(plain, modules=("mla_up_proj",))
    kind = model.kinds[-1]
    spared = layer_activation_bytes(plain, kind).value - layer_activation_bytes(again, kind).value
    assert spared == 4096 * 128 * (192 + 192 + 128) * 2


def test_every_module_is_found_in_a_model() -> None:
    """Each spares something of DeepSeek-V3, whose layers have them all."""
    model = known_model("DeepSeek-V3")
    plain = setting_of(model, 1, 4096, BF16, implementation=FUSED)
    for name in MODULES:
        again = replace(plain, modules=(name,))
        spared = [
            layer_activation_bytes(plain, kind).value - layer_activation_bytes(again, kind).value
            for kind in model.kinds
        ]
        assert max(spared) > 0, name


def test_what_is_recomputed_takes_time() -> None:
    asked = workload(model=mixture())
    layout = Layout(data=asked.cluster.count, implementation=FUSED)
    plain, again = (
        Pricing(asked).step(replace(layout, modules=modules))
        for modules in ((), ("layernorm", "moe_act"))
    )
    assert again.parts["compute"].value > plain.parts["compute"].value
    assert again.memory.activations.value < plain.memory.activations.value


def test_words_of_a_layout() -> None:
    layout = parse_layout("dp 2, layernorm, moe_act, offload 4", 2, None, Layout())
    assert (layout.modules, layout.offloaded) == (("layernorm", "moe_act"), 4)
    assert layout_in_short(layout) == "dp2 mb 1x1 layernorm moe_act offload 4"
    with pytest.raises(UsageError, match="Did you mean moe_act"):
        parse_layout("moe_cat", 1, None, Layout())


def test_what_cannot_be() -> None:
    asked = workload(model=llama(layers=8))
    base = Layout(data=asked.cluster.count)

    def reasons(**fields: object) -> tuple[str, ...]:
        layout = replace(base, **fields)  # type: ignore[arg-type]
        return invalidities(layout, asked.model, asked.cluster, sequence=asked.sequence)

    assert reasons() == ()
    assert "no layer of llama has it" in reasons(modules=("moe_act",))[0]
    assert "offload 9 of a stage of 8 layers" in reasons(offloaded=9)[0]


def test_all_but_two_layers_are_away() -> None:
    """Of eight layers six: two stay, and two are on their way."""
    asked = workload(model=llama(layers=8))
    layout = Layout(data=asked.cluster.count)
    pricing = Pricing(asked)
    plain, away = (pricing.step(replace(layout, offloaded=n)).memory for n in (0, 6))
    embedding = pricing._layer_activations(layout).embedding.value
    assert away.activations.value - embedding == pytest.approx(
        (plain.activations.value - embedding) / 2
    )
