"""Hybrids beside transformers' own classes: FLOPs, caches and activations, on the CPU."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.plan.config_cases import CASES, Keys
from torchtally.plan.activations.kept import layer_saved
from torchtally.plan.activations.setting import setting_of
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.model import LatentAttention, Model
from torchtally.plan.architecture.weights import Group, weights_of
from torchtally.plan.flops import token_flops
from torchtally.plan.kv_cache import Cache, CacheKind, kv_cache_bytes
from torchtally.plan.mixers.delta import CHUNK, GatedDelta
from torchtally.plan.mixers.mamba2 import Mamba2
from torchtally.plan.recipes import recipe

pytestmark = pytest.mark.one_case_in(3)

PLAIN = (
    "mamba", "mamba2", "bamba", "falcon_h1", "granitemoehybrid, dense", "lfm2", "minimax",
    "olmo_hybrid", "qwen3_5_text", "rwkv",
)  # fmt: skip
MIXTURES = ("granitemoehybrid", "jamba", "kimi_linear", "qwen3_next")
EIGHTS: Keys = {"num_experts": 8, "num_local_experts": 8, "moe_intermediate_size": 24}
"""Torch's grouped products want rows of 16 bytes."""
TOKENS = 128


def built(case: str, dtype: torch.dtype, attention: str | None = None) -> tuple[Model, Any]:
    import transformers

    transformers.logging.set_verbosity_error()
    model_type, keys = CASES[case]
    keys = keys | {name: size for name, size in EIGHTS.items() if keys.get(name)}
    ours = from_values(keys | {"model_type": model_type}, name=case, place="config.json")
    config = transformers.CONFIG_MAPPING[model_type](**keys)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return ours, model.to(dtype).train()


def fallback_flops(model: Model) -> float:
    """For a token, what the modules multiply beside the published algorithms: Mamba 2's scores for
    every head of a group, and its chunks' states by one product of all with all. They solve the
    delta rule's triangle, or fill it row by row where channels decay by themselves, which are then
    summed up without a product.
    """
    more = 0.0
    for kind in model.kinds:
        mixer = kind.recurrence
        if isinstance(mixer, Mamba2):
            repeated = 2 * (mixer.heads - mixer.groups) * mixer.chunk * mixer.state_size
            states = 2 * (TOKENS / mixer.chunk + 1) ** 2 * mixer.inner * mixer.state_size / TOKENS
            more += kind.count * (repeated + states)
        if isinstance(mixer, GatedDelta):
            solved = 2 * CHUNK * (mixer.key_dim + mixer.value_dim)
            solved = 2 * CHUNK * 2 * mixer.key_dim if mixer.is_by_channel else solved
            more -= kind.count * mixer.value_heads * solved
    return more


def experts_flops(model: Model) -> float:
    """For a token, of products of groups of rows, which torch's counter does not know."""
    experts = [weight for weight in weights_of(model) if weight.group is Group.EXPERTS]
    return 2.0 * float(sum(weight.active_elements for weight in experts))


@pytest.mark.thorough
@pytest.mark.parametrize("case", [*PLAIN, *MIXTURES])
def test_flops_are_those_that_torchs_counter_sees_in_the_class(case: str) -> None:
    ours, theirs = built(case, torch.float32, "eager")  # torch counts no attention on the CPU
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        theirs(torch.zeros(1, TOKENS, dtype=torch.long), use_cache=False)
    counted = counter.get_total_flops() / TOKENS
    forward = token_flops(ours, TOKENS).forward.value
    assert forward + fallback_flops(ours) - experts_flops(ours) == pytest.approx(counted, rel=0.02)
    # Without the scans the comparison fails: they are more than its tolerance.
    scans = token_flops(ours, TOKENS).recurrence.value
    assert scans > 0.02 * counted or case in ("lfm2", "rwkv")


def published_delta_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """Kimi Delta Attention by products of chunks (arXiv 2510.26692, section 3), of operands of
    shape (heads, chunks, tokens of one, channels): its equations in plain torch.
    """
    g = g.cumsum(-2)
    after, before = k * g.exp(), k * (-g).exp()
    triangle = (beta[..., None] * (after @ before.transpose(-1, -2))).tril(-1)
    inverse = (torch.eye(CHUNK) + triangle).inverse() * beta[..., None, :]
    seen, updates = inverse @ after, inverse @ v
    queries = q * g.exp()
    scores = (queries @ before.transpose(-1, -2)).tril()
    state = torch.zeros(q.shape[0], k.shape[-1], v.shape[-1])
    results = []
    for at in range(q.shape[1]):
        new = updates[:, at] - seen[:, at] @ state
        results.append(queries[:, at] @ state + scores[:, at] @ new)
        last = g[:, at, -1:]
        kept = k[:, at] * (last - g[:, at]).exp()
        state = state * last.exp().transpose(-1, -2) + kept.transpose(-1, -2) @ new
    return torch.stack(results, 1)


def test_kimi_delta_attention_is_counted_as_published() -> None:
    """To the last FLOP, and what is counted computes what transformers' module does."""
    from transformers.models.kimi_linear.modeling_kimi_linear import chunk_kimi_delta_attention

    torch.manual_seed(0)
    heads, D = 4, 10
    q, k, v, g = (torch.randn(1, TOKENS, heads, D) for _ in range(4))
    g, beta = -g.abs() / 10, torch.rand(1, TOKENS, heads)
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    expected, _ = chunk_kimi_delta_attention(q, k, v, g=g, beta=beta)

    def in_chunks(x: torch.Tensor) -> torch.Tensor:
        return x[0].transpose(0, 1).reshape(heads, -1, CHUNK, *x.shape[3:])

    q = q / D**0.5
    with FlopCounterMode(display=False) as counter:
        published = published_delta_attention(*(in_chunks(x) for x in (q, k, v, g, beta)))
    in_order = published.reshape(heads, TOKENS, D).transpose(0, 1)[None]
    torch.testing.assert_close(in_order, expected, atol=1e-4, rtol=1e-3)
    kimi = built("kimi_linear", torch.float32)[0].kinds[0].recurrence
    convolution = 2 * 3 * heads * D * 4
    assert kimi is not None
    counted = counter.get_total_flops() / TOKENS
    assert kimi.scan_flops(TOKENS).value == counted + convolution


@pytest.mark.parametrize("case", [*PLAIN, *MIXTURES])
def test_caches_are_those_of_transformers_to_the_byte(case: str) -> None:
    ours, theirs = built(case, torch.bfloat16)
    with torch.no_grad():
        result = theirs(torch.zeros(2, 20, dtype=torch.long), use_cache=True)
    kept = sum(tensor.nbytes for tensor in tensors_of(result))
    assert kv_cache_bytes(ours, 20, 2, Cache(CacheKind.DYNAMIC)).value == kept


def tensors_of(result: Any) -> Iterator[torch.Tensor]:
    if "state" in result:  # RWKV's, of all layers
        yield from result.state
        return
    cache = result.past_key_values if "past_key_values" in result else result.cache_params
    for layer in cache.layers:
        states = [*getattr(layer, "conv_states", {}).values()]
        states += [*getattr(layer, "recurrent_states", {}).values()]
        states += [getattr(layer, name, None) for name in ("keys", "values")]
        yield from (state for state in states if isinstance(state, torch.Tensor))
    yield from (s for s in getattr(cache, "linear_cache", ()) if isinstance(s, torch.Tensor))


@pytest.mark.parametrize("case", [*PLAIN, *MIXTURES])
def test_a_layer_keeps_what_autograd_keeps(case: str) -> None:
    """But for latent attention, which PyTorch composes of other operators on the CPU."""
    ours, theirs = built(case, torch.bfloat16)
    at = setting_of(ours, 2, TOKENS, recipe("bf16"))
    kinds = [kind for kind in ours.kinds if not isinstance(kind.attention, LatentAttention)]
    expected = {sum(saved.bytes.value for saved in layer_saved(at, kind)) for kind in kinds}
    kept = kept_by_layers(theirs)
    for size in expected:
        assert min(abs(size / other - 1) for other in kept) < 0.02


@pytest.mark.parametrize(
    "case", ["mamba", "mamba2", "lfm2", "minimax", "qwen3_5_text", "kimi_linear", "rwkv"]
)
def test_a_recurrence_keeps_what_autograd_keeps_in_float32(case: str) -> None:
    ours, theirs = built(case, torch.float32)
    at = setting_of(ours, 2, TOKENS, recipe("fp32"))
    kind = next(kind for kind in ours.kinds if kind.recurrence is not None)
    size = sum(saved.bytes.value for saved in layer_saved(at, kind))
    assert min(abs(size / other - 1) for other in kept_by_layers(theirs)) < 0.02


def kept_by_layers(model: Any) -> list[int]:
    """Bytes of storages that each layer's operators save, weights aside."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
    base = model.base_model
    sizes: list[int] = []
    saved: dict[int, torch.Tensor] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            saved.setdefault(place, tensor)
        return tensor

    hooks = []

    def enter(*_: Any) -> None:
        saved.clear()
        hooks.append(torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor))
        hooks[-1].__enter__()

    def leave(*_: Any) -> None:
        hooks.pop().__exit__(None, None, None)
        sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in saved.values()))

    for layer in base.blocks if hasattr(base, "blocks") else base.layers:
        layer.register_forward_pre_hook(enter)
        layer.register_forward_hook(leave)
    model(torch.zeros(2, TOKENS, dtype=torch.long), use_cache=False)
    return sizes
