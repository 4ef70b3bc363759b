"""`summary` of known architectures against closed forms: parameters and FLOPs, to the last one."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.plan.consistency.references import REFERENCES, maker, model_of
from torchtally import summary
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.flops import token_flops
from torchtally.views.model_summary import ModelSummary

pytestmark = pytest.mark.one_case_in(3)

as_is = partial(summary, optimizer="sgd", precision="as-is")


@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral", "deepseek-v3"])
def test_decoders(name: str) -> None:
    """Against `tally plan`'s: GPT-2 with its tied head, grouped heads, experts."""
    reference, model = REFERENCES[name], model_of(name)
    ids = f"{reference.batch}x{reference.sequence}:int64"
    with torch.device("meta"):
        module = reference.make()
    model_summary = as_is(module, ids)
    tokens = reference.batch * reference.sequence
    assert model_summary.parameters == sum(weight.elements for weight in weights_of(model))
    assert model_summary.model_flops == token_flops(model, reference.sequence).model.value * tokens


def on_meta(kind: str, config: str, **sizes: object) -> nn.Module:
    with torch.device("meta"):
        return maker(kind, config, **sizes)()


def forward_of_products(model: ModelSummary) -> int:
    return sum(
        entry.cost.flops
        for entry in model.ledger.reported
        if entry.kind.is_matmul and entry.op.phase.value == "forward"
    )


def test_resnet_50() -> None:
    """He et al. 2015: 4.09e9 multiplications at 224 x 224, 25.6 million parameters. The first
    convolution has no gradient of its input.
    """
    model_summary = as_is(
        on_meta("ResNetForImageClassification", "ResNetConfig", num_labels=1000), "2x3x224x224"
    )
    multiplications = 4_089_184_256
    first = 112 * 112 * 64 * 3 * 7 * 7
    assert model_summary.parameters == 25_557_032
    assert forward_of_products(model_summary) == 2 * 2 * multiplications
    assert model_summary.model_flops == 2 * 2 * (3 * multiplications - first)


def test_vit() -> None:
    """T patches of 16 x 16 and a class token; of four matrices of attention, two of the MLP, and
    two products of attention, each twice again backward; patches have no gradient.
    """
    D, F, L, B, labels = 64, 256, 3, 2, 10
    patches = (64 // 16) ** 2
    T, inside = patches + 1, 3 * 16 * 16
    model_summary = as_is(
        on_meta("ViTForImageClassification", "ViTConfig", hidden_size=D, intermediate_size=F,
                num_hidden_layers=L, num_attention_heads=4, image_size=64, num_labels=labels),
        f"{B}x3x64x64",
    )  # fmt: skip
    layer_weights = 4 * D * D + 2 * D * F
    layer_vectors = 4 * D + F + D + 4 * D  # biases, and two norms of two
    ends = inside * D + D + T * D + D + 2 * D + D * labels + labels
    assert model_summary.parameters == L * (layer_weights + layer_vectors) + ends
    layer_flops = 2 * T * layer_weights + 4 * T * T * D
    stem = 2 * patches * inside * D
    assert model_summary.model_flops == B * (3 * L * layer_flops + 2 * stem + 3 * 2 * D * labels)


def test_t5() -> None:
    """S tokens into the encoder, T into the decoder, which attends to both; the embedding is the
    head's matrix, too.
    """
    D, F, L, H, V, B, S, T = 64, 160, 2, 4, 100, 2, 24, 16
    model_summary = as_is(
        on_meta("T5ForConditionalGeneration", "T5Config", d_model=D, d_ff=F, num_layers=L,
                num_heads=H, d_kv=D // H, vocab_size=V),
        named_inputs={"input_ids": f"{B}x{S}:int64", "decoder_input_ids": f"{B}x{T}:int64"},
    )  # fmt: skip
    attention, mlp, buckets = 4 * D * D, 2 * D * F, 32 * H
    encoder = L * (attention + mlp + 2 * D) + D + buckets
    decoder = L * (2 * attention + mlp + 3 * D) + D + buckets
    assert model_summary.parameters == V * D + encoder + decoder
    # Keys and values of the attention to the encoder are of its S tokens.
    encoder_flops = L * (2 * S * (attention + mlp) + 4 * S * S * D)
    crossing = 2 * (2 * T + 2 * S) * D * D + 4 * T * S * D
    decoder_flops = L * (2 * T * (attention + mlp) + 4 * T * T * D + crossing)
    assert model_summary.model_flops == 3 * B * (encoder_flops + decoder_flops + 2 * T * D * V)
