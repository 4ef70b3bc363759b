"""Closed forms of low-rank adapters against the ledger of PEFT's own, on models of transformers."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.plan.config_cases import CASES as FAMILIES
from tests.plan.consistency.references import HYBRIDS, REFERENCES, Reference, maker, model_of
from tests.plan.consistency.traced import Traced
from tests.plan.kept_activations import activations
from tests.plan.test_hybrids import fallback_flops
from torchtally import account, run
from torchtally.errors import UsageError
from torchtally.plan.activations.kernel import usual_kernel
from torchtally.plan.activations.setting import Implementation
from torchtally.plan.adapters import adapted_flops, adapter_of, adapter_weights
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.known import known_model
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.flops import Recompute
from torchtally.plan.inference.formats import weight_format
from torchtally.plan.inference.weights import model_bytes
from torchtally.plan.memory import states
from torchtally.plan.optimizers import optimizer
from torchtally.plan.recipes import recipe
from torchtally.trace import Role
from torchtally.views.matrix_work import needed_flops, works_of
from torchtally.work.convention import Convention

pytestmark = pytest.mark.one_case_in(6)

SCALAR_BYTES = 8
RANK = 12
OF_64S = Reference(
    maker(
        "LlamaForCausalLM", "LlamaConfig", hidden_size=256, intermediate_size=704,
        num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4, vocab_size=1000,
    )
)  # fmt: skip
"""Every matrix is of whole blocks of 64 weights that share a scale."""


def adapted(
    reference: Reference, targets: str | list[str], dropout: float = 0.0, *,
    has_magnitude: bool = False, dtype: torch.dtype = torch.bfloat16,
) -> nn.Module:  # fmt: skip
    import peft

    model = reference.make().to(dtype).to("cuda").train()
    settings: dict[str, Any] = {"r": RANK, "lora_dropout": dropout, "target_modules": targets,
                                "use_dora": has_magnitude}  # fmt: skip
    adapters = peft.LoraConfig(**settings, task_type="CAUSAL_LM")
    return peft.get_peft_model(model, adapters)


def train(
    reference: Reference,
    targets: str | list[str],
    dropout: float = 0.0,
    *,
    is_checkpointed: bool = False,
    has_magnitude: bool = False,
    autocast: str | None = None,
) -> Traced:
    """`autocast`: the dtype of the frozen weights under it."""

    def script() -> None:
        dtype = getattr(torch, autocast or "bfloat16")
        model = adapted(reference, targets, dropout, has_magnitude=has_magnitude, dtype=dtype)
        if is_checkpointed:
            model.base_model.model.activation_checkpointing_enable({"use_reentrant": False})
        steps(model, reference, is_autocast=autocast is not None)

    return Traced(account(run(script, gpu="H100-SXM")))


def steps(model: nn.Module, reference: Reference, *, is_autocast: bool = False) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    vocabulary = model.config.vocab_size
    for _ in range(2):
        ids, labels = (
            torch.randint(0, vocabulary, (reference.batch, reference.sequence), device="cuda")
            for _ in range(2)
        )
        with torch.autocast("cuda", torch.bfloat16, enabled=is_autocast):
            loss = model(input_ids=ids, labels=labels, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


CASES = [
    ("llama", "all-linear", 0.0),
    ("llama", "all-linear", 0.1),
    ("llama", ["q_proj", "v_proj"], 0.0),
    ("llama", ["up_proj", "down_proj"], 0.0),
    ("llama", ["down_proj"], 0.05),
    ("llama", ["o_proj"], 0.0),
    ("qwen2", "all-linear", 0.0),
    ("qwen3", ["q_proj", "k_proj", "o_proj"], 0.0),
    ("gemma", "all-linear", 0.0),
    ("phi3", "all-linear", 0.05),
    ("gpt2", ["c_attn"], 0.0),
]


@pytest.mark.one_case_in(8)
@pytest.mark.parametrize(("name", "targets", "dropout"), CASES)
def test_closed_forms_are_the_ledgers(name: str, targets: str | list[str], dropout: float) -> None:
    check_plan(name, targets, dropout)


@pytest.mark.one_case_in(3)
@pytest.mark.thorough("the sums by hand beside it, of other models")
@pytest.mark.parametrize(
    ("name", "targets", "dropout"),
    [
        ("llama", "all-linear", 0.0),
        ("qwen2", ["q_proj", "down_proj"], 0.1),
        ("gpt2", ["c_attn"], 0.0),
    ],
)
def test_magnitudes_are_the_ledgers(name: str, targets: str | list[str], dropout: float) -> None:
    """DoRA."""
    check_plan(name, targets, dropout, has_magnitude=True)


@pytest.mark.one_case_in(3)
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "v_proj"]])
@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "deepseek-v3"])
def test_mixtures_are_the_ledgers(name: str, targets: str | list[str]) -> None:
    if name == "deepseek-v3" and isinstance(targets, list):
        targets = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]
    check_plan(name, targets)


@pytest.mark.one_case_in(8)
@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_are_the_ledgers(name: str) -> None:
    """FLOPs within 1 %, by what transformers' modules multiply instead of the published algorithms;
    what is kept within 2 %. Jamba's class reads dt_proj's weight itself, and leaves the adapter
    beside it without a gradient.
    """
    reference, model, how = HYBRIDS[name], model_of(name), recipe("bf16")
    traced = train(reference, "all-linear")
    adapter = adapter_of(model, RANK)
    beside = adapter_weights(model, adapter)
    frozen = states(weights_of(model), how, optimizer("adamw")).parameters.value
    unread = {"mixer steps A", "mixer steps B"} if name == "jamba" else set()
    whole, trained = (
        states(weights, recipe("fp32"), optimizer("adamw"))
        for weights in (beside, [weight for weight in beside if weight.name not in unread])
    )
    assert whole.parameters.value + frozen == traced.bytes_of(Role.PARAMETER)
    assert trained.gradients.value == traced.bytes_of(Role.GRADIENT)
    assert trained.optimizer.value == traced.bytes_of(Role.OPTIMIZER_STATE)
    per_token = adapted_flops(model, adapter, reference.sequence)
    tokens = reference.batch * reference.sequence
    counted = needed_flops(works_of(traced.ledger.reported), Convention.FULL)
    published = per_token.total.value + 3 * fallback_flops(model)
    assert published * tokens + per_token.each_pass.value == pytest.approx(counted, rel=0.01)
    kernel = usual_kernel(model, how, reference.sequence, Implementation.EAGER)
    sums = activations(
        model, reference.batch, reference.sequence, how, kernel=kernel, adapter=adapter
    )
    kept = sums.embedding.value + sum(layer.value for layer in sums.layers) + sums.head.value
    assert kept == pytest.approx(traced.kept_bytes, rel=0.02)


REFUSED = {"opt with narrow embeddings", "phimoe", "llama4_text", "llama4_text, all sparse",
           "mamba", "mamba2", "falcon_mamba, biased", "falcon_h1"}  # fmt: skip
"""Of these PEFT refuses all-linear, or takes matrices besides that are not counted."""


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("case", FAMILIES)
def test_all_linear_is_what_peft_takes(case: str) -> None:
    """To the last trained parameter, in every family: routed experts in some, in others none."""
    import peft
    import transformers

    model_type, keys = FAMILIES[case]
    ours = from_values(keys | {"model_type": model_type}, name=case, place="config.json")
    if case in REFUSED:
        with pytest.raises(UsageError, match="all-linear"):
            adapter_of(ours, 4)
        return
    config = transformers.CONFIG_MAPPING[model_type](**keys)
    theirs = transformers.AutoModelForCausalLM.from_config(config)
    adapters = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    trained = sum(
        p.numel() for p in peft.get_peft_model(theirs, adapters).parameters() if p.requires_grad
    )
    assert sum(weight.elements for weight in adapter_weights(ours, adapter_of(ours, 4))) == trained


def test_names_of_hybrids_are_those_of_transformers() -> None:
    """A name may mean several matrices: attention's and a recurrence's."""

    def targets(name: str, *words: str) -> frozenset[str]:
        return adapter_of(model_of(name), 4, words).targets

    assert targets("bamba", "in_proj", "out_proj") == {"mixer in", "mixer out"}
    assert targets("lfm2", "in_proj", "out_proj") == {"mixer in", "mixer out", "attention output"}
    assert targets("rwkv", "key", "value", "receptance") == {
        "mixer k", "mixer v", "mixer r", "up", "down", "feed-forward receptance"
    }  # fmt: skip
    with pytest.raises(UsageError, match="its first layer has experts, latent attention or a rec"):
        targets("bamba", "q_proj", "v_proj")


@pytest.mark.one_case_in(4)
@pytest.mark.parametrize("weights", ["bfloat16", "float32"])
@pytest.mark.parametrize("has_magnitude", [False, True])
def test_under_autocast(weights: str, has_magnitude: bool) -> None:
    check_plan("llama", "all-linear", 0.1, has_magnitude=has_magnitude, autocast=weights)


def check_plan(
    name: str,
    targets: str | list[str],
    dropout: float = 0.0,
    *,
    has_magnitude: bool = False,
    autocast: str | None = None,
) -> None:
    """Parameters, gradients, states, FLOPs and activations, against the ledger."""
    reference, model = REFERENCES[name], model_of(name)
    how = recipe("amp" if autocast == "float32" else "bf16")
    traced = train(reference, targets, dropout, has_magnitude=has_magnitude, autocast=autocast)
    adapter = adapter_of(
        model, RANK, [targets] if isinstance(targets, str) else targets, dropout,
        has_magnitude=has_magnitude, is_autocast=autocast is not None,
    )  # fmt: skip
    beside = adapter_weights(model, adapter)
    trained = states(beside, recipe("fp32"), optimizer("adamw"))
    frozen = states(weights_of(model), how, optimizer("adamw")).parameters.value
    assert trained.parameters.value + frozen == traced.bytes_of(Role.PARAMETER)
    assert trained.gradients.value == traced.bytes_of(Role.GRADIENT)
    assert trained.optimizer.value == traced.bytes_of(Role.OPTIMIZER_STATE)
    per_token = adapted_flops(model, adapter, reference.sequence)
    tokens = reference.batch * reference.sequence
    assert needed_flops(works_of(traced.ledger.reported), Convention.FULL) == (
        per_token.total.value * tokens + per_token.each_pass.value
    )
    kernel = usual_kernel(model, how, reference.sequence, Implementation.EAGER)
    kept_tensors = activations(
        model, reference.batch, reference.sequence, how, kernel=kernel, adapter=adapter
    )
    kept = (
        kept_tensors.embedding.value
        + sum(layer.value for layer in kept_tensors.layers)
        + kept_tensors.head.value
    )
    allowed = SCALAR_BYTES * model.layers if reference.is_exact else traced.kept_bytes / 50
    assert abs(kept - traced.kept_bytes) <= allowed


@pytest.mark.one_case_in(3)
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "dropout"), [("llama", 0.0), ("qwen2", 0.1), ("gpt2", 0.0)])
def test_recomputed_layers_keep_their_inputs_alone(name: str, dropout: float) -> None:
    reference, model, how = REFERENCES[name], model_of(name), recipe("bf16")
    targets = ["c_attn"] if name == "gpt2" else "all-linear"
    traced = train(reference, targets, dropout, is_checkpointed=True)
    adapter = adapter_of(model, RANK, [targets] if isinstance(targets, str) else targets, dropout)
    kernel = usual_kernel(model, how, reference.sequence, Implementation.EAGER)
    kept_tensors = activations(
        model, reference.batch, reference.sequence, how, kernel=kernel, adapter=adapter,
        recompute=Recompute.FULL,
    )  # fmt: skip
    kept = (
        kept_tensors.embedding.value
        + sum(layer.value for layer in kept_tensors.layers)
        + kept_tensors.head.value
    )
    assert abs(kept - traced.kept_bytes) <= SCALAR_BYTES * model.layers
    assert kept_tensors.total.value == pytest.approx(traced.most_kept_bytes, rel=0.02)
    per_token = adapted_flops(model, adapter, reference.sequence, is_recomputed=True)
    tokens = reference.batch * reference.sequence
    total = traced.ledger.total
    assert needed_flops(works_of(traced.ledger.reported), Convention.FULL) == (
        per_token.total.value * tokens
    )
    assert total.flops_recompute > 0


def test_adapters_by_hand() -> None:
    """Llama 3 8B, rank 16, all matrices of a layer: 16 * (in + out) each, in 32 layers."""
    model = known_model("llama-3-8b")
    adapter = adapter_of(model, 16)
    sizes = ((4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096),
             (4096, 14336), (4096, 14336), (14336, 4096))  # fmt: skip
    by_hand = 32 * sum(16 * (given + out) for given, out in sizes)
    assert sum(weight.elements for weight in adapter_weights(model, adapter)) == by_hand
    assert by_hand == 41_943_040  # as PEFT prints it


def test_what_has_no_adapters_is_refused() -> None:
    with pytest.raises(UsageError, match="no matrix 'qproj'"):
        adapter_of(known_model("llama-3-8b"), 8, ["qproj"])
    with pytest.raises(UsageError, match="its first layer has experts"):
        adapter_of(known_model("mixtral-8x7b"), 8, ["experts out"])
    with pytest.raises(UsageError, match="neither dropout nor magnitudes"):
        adapter_of(known_model("mixtral-8x7b"), 8, has_magnitude=True)


def test_quantised_weights_are_the_ledgers() -> None:
    """QLoRA by bitsandbytes: packed weights and their scales, and what is kept beside them."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    reference, model = OF_64S, OF_64S.model

    def script() -> None:
        import peft

        base = reference.make().to(torch.bfloat16)
        for parent in [
            part for layer in base.model.layers for part in (layer.self_attn, layer.mlp)
        ]:
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, quantised(bitsandbytes, child))
        settings: dict[str, Any] = {"r": RANK, "target_modules": "all-linear"}
        tuned = peft.get_peft_model(
            base.cuda(), peft.LoraConfig(**settings, task_type="CAUSAL_LM")
        ).train()
        steps(tuned, reference)

    traced = Traced(account(run(script, gpu="H100-SXM")))
    adapter = adapter_of(model, RANK)
    how = recipe("bf16")
    kept_tensors = activations(model, reference.batch, reference.sequence, how, adapter=adapter)
    kept = (
        kept_tensors.embedding.value
        + sum(layer.value for layer in kept_tensors.layers)
        + kept_tensors.head.value
    )
    assert abs(kept - traced.kept_bytes) <= SCALAR_BYTES * model.layers
    trained = states(adapter_weights(model, adapter), recipe("fp32"), optimizer("adamw"))
    base = model_bytes(model, weight_format("nf4")).value
    scales = sum(
        math.prod(weight.shape) * weight.count // 64 * 4
        for weight in weights_of(model)
        if weight.uses and weight.name != "head"
    )
    assert traced.bytes_of(Role.PARAMETER) == trained.parameters.value + base - scales


def quantised(bitsandbytes: Any, linear: nn.Linear) -> nn.Module:
    settings: dict[str, Any] = {"quant_type": "nf4", "compress_statistics": False}
    packed = bitsandbytes.nn.Linear4bit(
        linear.in_features, linear.out_features, bias=False, compute_dtype=torch.bfloat16,
        **settings,
    )  # fmt: skip
    packed.weight = bitsandbytes.nn.Params4bit(linear.weight.data, requires_grad=False, **settings)
    return packed
