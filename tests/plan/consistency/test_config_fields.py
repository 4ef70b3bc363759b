"""What a config.json says of how a model computes, against transformers' class at work.

Parameters do not show these fields. A small model of every family is run on the CPU, and its
autograd graph and the probabilities of its dropouts are looked at.
"""

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.plan.config_cases import CASES
from torchtally.plan.architecture.config import from_values
from torchtally.plan.architecture.model import Experts, Model, SelfAttention
from torchtally.plan.flops import token_flops
from torchtally.work.convention import Convention

pytestmark = pytest.mark.one_case_in(4)

TOKENS = 8
MIXES = [case for case, (_, keys) in CASES.items()
         if any("expert" in name for name in keys) and "llama4" not in case
         and keys.get("num_local_experts") != 0]  # fmt: skip
"""Llama 4's router gives no list of experts."""
ATTENDING = [case for case in CASES if not case.startswith((
    "mamba", "falcon_mamba", "bamba", "granitemoehybrid", "jamba", "lfm2", "olmo_hybrid", "rwkv",
    "qwen3_next", "qwen3_5"))]  # fmt: skip
"""Those with attention in the first layer, which a feed-forward follows."""
DROPPING = [case for case in CASES if "mamba" not in case]
"""Mamba's classes have no dropout."""
EMBEDDING, STREAM, ATTENTION = 0.125, 0.25, 0.5


def both(case: str, **more: Any) -> tuple[nn.Module, Model]:
    # Not at the top: collecting the tests should not import transformers.
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    model_type, keys = CASES[case]
    if "moe_intermediate_size" in keys:
        more["moe_intermediate_size"] = 32  # rows of 16 bytes, as grouped products want them
    config = CONFIG_MAPPING[model_type](**keys | more)
    theirs = AutoModelForCausalLM.from_config(config)
    return theirs.train(), from_values(config.to_dict(), name=case, place="its class")


def run(model: nn.Module) -> None:
    ids = torch.arange(2 * TOKENS).view(2, TOKENS)
    model(input_ids=ids, use_cache=False)


def first(model: nn.Module, is_it: Callable[[nn.Module], bool]) -> nn.Module:
    return next(module for module in model.modules() if is_it(module))


def named(*words: str) -> Callable[[nn.Module], bool]:
    return lambda module: type(module).__name__.endswith(words)


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for leaf in value:
            yield from tensors_in(leaf)


def graph(tensors: Iterator[Tensor]) -> Iterator[Any]:
    """Every node of autograd that these came from."""
    nodes, seen = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None], set()
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            yield node
            nodes += [function for function, _ in node.next_functions if function is not None]


# Norms and layers.


@pytest.mark.parametrize("case", CASES)
def test_a_wide_norm_keeps_two_tensors_in_float32(case: str) -> None:
    """What it was given and what its weight multiplies; others multiply after the cast."""
    theirs, ours = both(case)
    norm = first(theirs, named("Norm", "Norm1P")).to(torch.bfloat16)
    width = norm.weight.shape[-1] if getattr(norm, "weight", None) is not None else ours.width
    kept: set[int] = set()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.dtype is torch.float32 and tensor.shape == (2, TOKENS, width):
            kept.add(tensor.data_ptr())
        return tensor

    given = torch.randn(2, TOKENS, width, dtype=torch.bfloat16, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        result = norm(given)
    assert ours.has_wide_norm == (len(kept) >= 2)
    assert result.dtype is torch.bfloat16


@pytest.mark.parametrize("case", ATTENDING)
def test_a_parallel_layers_feed_forward_does_not_read_attention(case: str) -> None:
    theirs, ours = both(case)
    results, inputs = [], []
    attention = first(theirs, named("Attention", "SelfAttention"))
    is_inner = named("MLP", "MoE", "Moe", "SparseMoeBlock")
    inner = next(
        module
        for name, module in theirs.named_modules()
        if is_inner(module) or name.endswith("0.fc1")
    )
    attention.register_forward_hook(lambda _, __, out: results.append(next(tensors_in(out))))
    inner.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    run(theirs)
    (read,) = torch.autograd.grad(inputs[0].sum(), results[0], allow_unused=True)
    assert [kind.is_parallel for kind in ours.kinds] == [read is None] * len(ours.kinds)


@pytest.mark.parametrize("case", CASES)
def test_heads_that_turn_in_part_are_put_together(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = both(case)
    queries: list[Tensor] = []
    attend = F.scaled_dot_product_attention

    def recorded(query: Tensor, *more: Any, **options: Any) -> Tensor:
        queries.append(query)
        return attend(query, *more, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recorded)
    run(theirs)
    attention = ours.kinds[0].attention
    if not queries or not isinstance(attention, SelfAttention):
        pytest.skip("attention of its own")
    assert attention.is_partly_rotary == (type(queries[0].grad_fn).__name__ == "CatBackward0")


# Routers.


def router_graph(case: str) -> tuple[list[Any], Experts]:
    theirs, ours = both(case)
    model = theirs.to(torch.bfloat16)
    router = first(model, named("Router"))
    given = torch.randn(TOKENS, ours.width, dtype=torch.bfloat16, requires_grad=True)
    experts = next(
        kind.feed_forward for kind in ours.kinds if isinstance(kind.feed_forward, Experts)
    )
    takes_correction = len(signature(router.forward).parameters) > 1  # MiniMax-M2's
    correction = (torch.zeros(experts.experts),) if takes_correction else ()
    return list(graph(tensors_in(router(given, *correction)))), experts


@pytest.mark.parametrize("case", MIXES)
@pytest.mark.parametrize("normalises", [True, False])
def test_weights_of_experts_are_divided_by_their_sum(
    case: str, normalises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        CASES, case, (CASES[case][0], CASES[case][1] | {"norm_topk_prob": normalises})
    )
    nodes, experts = router_graph(case)
    names = {type(node).__name__ for node in nodes}
    assert experts.is_normalised == bool({"DivBackward0", "DivBackward1"} & names)


@pytest.mark.parametrize("case", MIXES)
def test_a_wide_router_is_a_product_in_float32(case: str) -> None:
    nodes, experts = router_graph(case)
    products = [node for node in nodes if type(node).__name__ in {"MmBackward0", "AddmmBackward0"}]
    (dtype,) = {product._saved_mat2.dtype for product in products}
    assert experts.is_router_wide == (dtype is torch.float32)


# FLOPs.

LATE = ("cwm", "flex_olmo", "glm4_moe_lite", "helium", "hunyuan_v1_dense", "internlm3", "jais2",
        "mellum", "minicpm3", "minimax_m2", "ministral", "ministral3", "solar_open", "vaultgemma",
        "youtu", "llama", "mixtral", "deepseek_v3", "gpt_oss")  # fmt: skip
"""Families that no reference model of `test_reference_models.py` is of, and some that are."""


@pytest.mark.parametrize("case", LATE)
def test_flops_of_the_forward_pass_are_those_of_the_class(case: str) -> None:
    """By PyTorch's counter; no sequence is longer than a window, so masks leave nothing out."""
    theirs, ours = both(case)
    theirs.config._attn_implementation = "eager"  # type: ignore[union-attr]
    theirs.config._experts_implementation = "eager"  # type: ignore[union-attr]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run(theirs.eval())
    each = token_flops(ours, TOKENS, attention=Convention.FULL).forward.value
    assert counter.get_total_flops() == 2 * TOKENS * each


# Dropouts.

KEYS = {
    "embd_pdrop": EMBEDDING, "embed_dropout": EMBEDDING, "embedding_dropout": EMBEDDING,
    "resid_pdrop": STREAM, "resid_dropout": STREAM, "residual_dropout": STREAM,
    "hidden_dropout": STREAM, "attn_pdrop": ATTENTION, "attention_dropout": ATTENTION,
}  # fmt: skip
"""Every key that is a dropout, with another probability for each place."""


@pytest.mark.parametrize("case", DROPPING)
def test_dropouts_are_where_their_keys_say(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: dict[str, Any] = dict(KEYS)
    if case.startswith("opt"):
        keys["dropout"] = STREAM
    if case == "mpt":
        keys = {"attn_config": {"attn_pdrop": 1}, "resid_pdrop": 0.75, "emb_pdrop": 0.75}
    theirs, ours = both(case, **keys)
    dropouts: dict[str, set[float]] = {"embedding": set(), "stream": set(), "attention": set()}
    is_inside = False

    def entered(*_: Any) -> None:
        nonlocal is_inside
        is_inside = True

    def dropped(
        tensor: Tensor, p: float = 0.5, training: bool = True, *_: Any, **__: Any
    ) -> Tensor:
        is_scores = tensor.dim() == 4 or tensor.shape[-1] == TOKENS
        place = "attention" if is_scores else "stream" if is_inside else "embedding"
        dropouts[place].add(float(p) if training else 0.0)
        return tensor

    attend = F.scaled_dot_product_attention

    def attended(*tensors: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
        dropouts["attention"].add(dropout_p)
        return attend(*tensors, dropout_p=0.0, **options)

    monkeypatch.setattr(F, "dropout", dropped)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attended)
    first(theirs, named("Layer", "Block")).register_forward_pre_hook(entered)
    run(theirs)
    assert ours.embedding_dropout == max(dropouts["embedding"], default=0.0)
    # Falcon's layers in sequence drop part of the stream with attention's probability.
    assert ours.dropout == max(dropouts["stream"] - {ATTENTION}, default=0.0)
    assert ours.attention_dropout == max(dropouts["attention"], default=0.0)
