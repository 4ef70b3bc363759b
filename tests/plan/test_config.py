"""A config.json read without torch is, tensor by tensor, the model transformers makes of it."""

import json
import os
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

from tests.plan.config_cases import BASE, CASES, HEAD, LLAMA4, NEO, QWEN_MOE, Keys
from torchtally.plan.architecture.config import FAMILIES, WRAPPERS, from_values, read_config
from torchtally.plan.architecture.config_keys import defaults
from torchtally.plan.architecture.model import Experts, Model, SelfAttention
from torchtally.plan.architecture.weights import Weight, weights_of

pytestmark = pytest.mark.one_case_in(3)

Shapes = Counter[tuple[int, ...]]


@cache
def hf() -> Any:
    """Not at the top: collecting the tests should not import transformers."""
    import transformers

    transformers.logging.set_verbosity_error()
    return transformers


def written(folder: Path, config: Any) -> Path:
    path = folder / "config.json"
    config.to_json_file(path)
    return path


def shapes_of(tensors: Any) -> Shapes:
    """Every shape with its sides sorted: how a matrix lies is a matter of its layer's class."""
    return Counter(tuple(sorted(tensor.shape)) for tensor in tensors if tensor.requires_grad)


def our_shapes(model: Model) -> Shapes:
    shapes: Shapes = Counter()
    for weight in weights_of(model):
        shapes[tuple(sorted(weight.shape))] += weight.count
    return shapes


def count(weights: tuple[Weight, ...]) -> int:
    return sum(weight.elements for weight in weights)


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    model_type, keys = CASES[case]
    config = hf().CONFIG_MAPPING[model_type](**keys)
    with torch.device("meta"):
        theirs = hf().AutoModelForCausalLM.from_config(config)
    ours = read_config(written(tmp_path, config))
    trained = [parameter for parameter in theirs.parameters() if parameter.requires_grad]
    assert our_shapes(ours) == shapes_of(trained)
    assert count(weights_of(ours)) == sum(parameter.numel() for parameter in trained)
    assert ours.layers == config.num_hidden_layers
    assert ours.notes == ()


def test_cohere_with_norms_of_heads_has_the_same_total(tmp_path: Path) -> None:
    """Its norms are matrices, (heads, head dim): equal in number alone."""
    config = hf().CONFIG_MAPPING["cohere"](**BASE, use_qk_norm=True)
    with torch.device("meta"):
        theirs = hf().AutoModelForCausalLM.from_config(config)
    ours = read_config(written(tmp_path, config))
    assert count(weights_of(ours)) == sum(parameter.numel() for parameter in theirs.parameters())


@pytest.mark.parametrize(("layers", "width"), [(12, 768), (32, 4096)])
def test_rwkv_of_169m_and_7b(layers: int, width: int) -> None:
    config = hf().RwkvConfig(num_hidden_layers=layers, hidden_size=width)
    with torch.device("meta"):
        theirs = hf().RwkvForCausalLM(config)
    ours = from_values(config.to_dict(), name="rwkv", place="its class")
    assert count(weights_of(ours)) == sum(parameter.numel() for parameter in theirs.parameters())


def test_every_family_has_a_case() -> None:
    tried = {model_type for model_type, _ in CASES.values()}
    assert set(FAMILIES) - tried == {
        "qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "mllama_text_model"
    }  # fmt: skip
    assert set(WRAPPERS) == set(MULTIMODAL)


# What parameters do not show. `consistency/test_config_fields.py` compares it with the class.


def of_case(case: str, **change: Any) -> Model:
    model_type, keys = CASES[case]
    return from_values(keys | {"model_type": model_type} | change, name=case, place="config.json")


def is_parallel(model: Model) -> bool:
    return all(kind.is_parallel for kind in model.kinds)


def is_partly_rotary(model: Model) -> bool:
    attentions = [kind.attention for kind in model.kinds]
    return all(
        isinstance(attention, SelfAttention) and attention.is_partly_rotary
        for attention in attentions
    )


def experts_of(model: Model) -> Experts:
    return next(kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Experts))


def test_norms_that_multiply_in_float32() -> None:
    wide = {case for case in CASES if of_case(case).has_wide_norm}
    assert wide == {
        "gemma", "gemma2", "gemma3_text", "olmo2", "olmo3", "cohere", "cohere2", "gpt_oss",
        "helium", "vaultgemma", "flex_olmo", "olmo_hybrid", "qwen3_next", "qwen3_5_text",
        "qwen3_5_moe_text",
    }  # fmt: skip


def test_layers_whose_halves_run_beside_each_other() -> None:
    assert is_parallel(of_case("gpt_neox"))
    assert not is_parallel(of_case("gpt_neox", use_parallel_residual=False))
    assert not is_parallel(of_case("stablelm"))
    assert is_parallel(of_case("stablelm", use_parallel_residual=True))
    assert is_parallel(of_case("falcon, one key"))
    assert not is_parallel(of_case("falcon, one key", parallel_attn=False))
    always = ("phi", "gptj", "codegen", "cohere", "cohere2")
    assert all(is_parallel(of_case(case)) for case in always)
    assert not is_parallel(of_case("llama"))


def test_heads_that_turn_in_part() -> None:
    """By the code, which puts heads together even where all of each turns."""
    assert is_partly_rotary(of_case("phi3", partial_rotary_factor=1.0))
    assert is_partly_rotary(of_case("gptj"))
    assert not is_partly_rotary(of_case("gptj", rotary_dim=None))
    partly = ("codegen", "gpt_neox", "phi", "stablelm", "glm", "glm4", "glm4_moe", "nemotron")
    assert all(is_partly_rotary(of_case(case)) for case in partly)
    assert not is_partly_rotary(of_case("llama"))


@pytest.mark.parametrize(
    "case", ["qwen2_moe", "qwen3_moe", "olmoe", "glm4_moe", "dots1", "deepseek_v3"]
)
def test_weights_of_experts_that_a_key_normalises(case: str) -> None:
    assert experts_of(of_case(case, norm_topk_prob=True)).is_normalised
    assert not experts_of(of_case(case, norm_topk_prob=False)).is_normalised


def test_weights_of_experts_that_no_key_normalises() -> None:
    assert experts_of(of_case("mixtral", norm_topk_prob=False)).is_normalised
    assert experts_of(of_case("ernie4_5_moe")).is_normalised
    assert not experts_of(of_case("deepseek_v2", norm_topk_prob=True)).is_normalised
    assert not experts_of(of_case("qwen3_moe")).is_normalised
    assert experts_of(of_case("deepseek_v3")).is_normalised


def test_routers_in_float32() -> None:
    mixtures = {case for case in CASES if of_case(case).is_mixture}
    wide = {case for case in mixtures if experts_of(of_case(case)).is_router_wide}
    assert {CASES[case][0] for case in wide} == {
        "deepseek_v2", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "dots1", "ernie4_5_moe",
        "solar_open", "kimi_linear",
    }  # fmt: skip


def dropouts(model: Model) -> tuple[float, float | None, float | None]:
    return model.dropout, model.embedding_dropout, model.attention_dropout


def test_dropouts_have_each_familys_names() -> None:
    assert dropouts(of_case("gpt2")) == (0.1, 0.1, 0.1)
    changed = of_case("gpt2", resid_pdrop=0.2, embd_pdrop=0.3, attn_pdrop=0.4)
    assert dropouts(changed) == (0.2, 0.3, 0.4)
    assert dropouts(of_case("opt")) == (0.1, 0.0, 0.0)
    assert dropouts(of_case("gpt_neox", hidden_dropout=0.2)) == (0.2, 0.2, 0.0)
    assert dropouts(of_case("seed_oss")) == (0.1, 0.0, 0.1)
    assert dropouts(of_case("mpt", attn_config={"attn_pdrop": 0.2})) == (0.2, 0.0, 0.2)
    assert dropouts(of_case("mpt", resid_pdrop=0.2)) == (0.0, 0.0, 0.0)
    assert dropouts(of_case("ernie4_5", attention_dropout=0.2)) == (0.0, 0.0, 0.0)


def test_falcons_attention_drops_nothing_but_with_alibi() -> None:
    change = {"attention_dropout": 0.2}
    assert of_case("falcon, one key", **change).attention_dropout == 0.0
    assert of_case("falcon, one key", alibi=True, **change).attention_dropout == 0.2


# Windows.


@pytest.mark.parametrize(
    "case", [name for name, (_, keys) in CASES.items() if "sliding_window" in keys]
)
@pytest.mark.parametrize("is_listed", [True, False])
def test_windows_are_those_of_layer_types(case: str, is_listed: bool, tmp_path: Path) -> None:
    """Both where the file lists them and where the class's rule makes them."""
    model_type, keys = CASES[case]
    config = hf().CONFIG_MAPPING[model_type](**keys)
    path = written(tmp_path, config)
    values = json.loads(path.read_text())
    if not is_listed:
        values.pop("layer_types", None)
    path.write_text(json.dumps(values))
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    ours = read_config(path)
    narrow = sum(kind.count for kind in ours.kinds if kind.attention.window == 8)
    assert narrow == types.count("sliding_attention")
    assert narrow > 0


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen2_moe"])
@pytest.mark.parametrize("is_used", [True, False])
def test_windows_that_a_flag_turns_off(model_type: str, is_used: bool, tmp_path: Path) -> None:
    keys = QWEN_MOE | {
        "sliding_window": 8, "use_sliding_window": is_used, "max_window_layers": 2,
        "num_hidden_layers": 5,
    }  # fmt: skip
    config = hf().CONFIG_MAPPING[model_type](**keys)
    path = written(tmp_path, config)
    values = json.loads(path.read_text())
    del values["layer_types"]
    path.write_text(json.dumps(values))
    windows = [(kind.count, kind.attention.window) for kind in read_config(path).kinds]
    narrow = sum(n for n, window in windows if window)
    assert narrow == (config.layer_types.count("sliding_attention") if is_used else 0)


def test_gpt_neo_sees_far_and_near_by_turns(tmp_path: Path) -> None:
    ours = read_config(written(tmp_path, hf().CONFIG_MAPPING["gpt_neo"](**NEO)))
    assert [(kind.count, kind.attention.window) for kind in ours.kinds] == [(2, None), (2, 8)]


def test_llama_4_sees_its_chunk_in_three_layers_of_four(tmp_path: Path) -> None:
    config = hf().CONFIG_MAPPING["llama4_text"](**LLAMA4 | {"num_hidden_layers": 8})
    kinds = read_config(written(tmp_path, config)).kinds
    attentions = {kind.count: kind.attention for kind in kinds}
    chunked, full = attentions[6], attentions[2]
    assert isinstance(chunked, SelfAttention)
    assert isinstance(full, SelfAttention)
    assert (chunked.window, chunked.is_chunked) == (8192, True)
    assert (full.window, full.is_chunked) == (None, False)


# Models that see.

MULTIMODAL: dict[str, Keys] = {
    "llava": BASE | {"model_type": "llama"},
    "llava_next": BASE | {"model_type": "mistral"},
    "qwen2_vl": BASE,
    "qwen2_5_vl": BASE,
    "qwen3_vl": BASE | HEAD,
    "gemma3": BASE | HEAD,
    "mistral3": BASE | HEAD | {"model_type": "mistral"},
    "llama4": LLAMA4,
    "mllama": BASE | {"cross_attention_layers": [1], "bos_token_id": 1, "eos_token_id": 2},
}


def text_tensors(model_type: str, theirs: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Those of the text part: of it, and of the head, wherever they hang."""
    for name, parameter in theirs.named_parameters():
        if "language_model" in name or "lm_head" in name:
            yield name, parameter


@pytest.mark.parametrize("model_type", [name for name in MULTIMODAL if name != "mllama"])
@pytest.mark.parametrize("is_tied", [True, False, None])
def test_the_text_part_of_models_that_see(
    model_type: str, is_tied: bool | None, tmp_path: Path
) -> None:
    keys = MULTIMODAL[model_type]
    tying = {} if is_tied is None else {"tie_word_embeddings": is_tied}
    below = tying if model_type == "llama4" else {}
    config = hf().CONFIG_MAPPING[model_type](text_config=keys | below, **tying)
    with torch.device("meta"):
        theirs = hf().AutoModelForImageTextToText.from_config(config)
    ours = read_config(written(tmp_path, config))
    assert our_shapes(ours) == shapes_of(tensor for _, tensor in text_tensors(model_type, theirs))
    assert ours.left_out == ("the vision tower", "the projector")


def test_mllama_without_the_layers_that_look_at_images(tmp_path: Path) -> None:
    config = hf().CONFIG_MAPPING["mllama"](text_config=MULTIMODAL["mllama"])
    with torch.device("meta"):
        theirs = hf().AutoModelForImageTextToText.from_config(config)
    ours = read_config(written(tmp_path, config))
    text = [tensor for name, tensor in text_tensors("mllama", theirs) if ".layers.1." not in name]
    assert count(weights_of(ours)) == sum(tensor.numel() for tensor in text) - 8 * 48
    assert ours.left_out[2:] == ("1 cross-attention layers", "8 rows of the embedding, for images")


def test_a_text_part_that_says_only_how_it_differs() -> None:
    """LLaVA-1.5's file says no size of its text part: they are those of the class, Llama 7B's."""
    text = {"model_type": "llama", "vocab_size": 32064}
    model = from_values(
        {"model_type": "llava", "text_config": text, "tie_word_embeddings": False},
        name="llava",
        place="config.json",
    )
    assert (model.layers, model.width, model.vocabulary) == (32, 4096, 32064)


def test_an_old_file_holds_the_text_parts_keys_as_its_own() -> None:
    values = BASE | {"model_type": "qwen2_vl", "vision_config": {}, "tie_word_embeddings": True}
    model = from_values(values, name="qwen", place="config.json")
    assert (model.width, model.is_tied) == (48, True)


# Defaults.

OURS = {("bloom", "activation"), ("mpt", "activation"), ("rwkv", "activation")}
"""Not of a class: see the file."""


def test_every_family_has_a_row_of_defaults() -> None:
    assert set(defaults()) == set(FAMILIES) | set(WRAPPERS)


@pytest.mark.parametrize("model_type", list(defaults()))
def test_defaults_are_those_of_the_class(model_type: str) -> None:
    theirs = hf().CONFIG_MAPPING[model_type]
    for key, value in defaults()[model_type].items():
        if (model_type, key) not in OURS:
            assert getattr(theirs, key) == value, key


def test_a_default_missing_in_our_table_would_be_seen() -> None:
    """Of the keys that any row has, a class has no other default than the table says."""
    keys = {key for row in defaults().values() for key in row}
    for model_type, row in defaults().items():
        for key in keys - set(row):
            value = getattr(hf().CONFIG_MAPPING[model_type], key, None)
            assert not isinstance(value, bool | int | float | str), (model_type, key)


def test_the_second_oracle_sees_a_missing_bias(tmp_path: Path) -> None:
    """The comparison itself fails where one flag is lost on the way."""
    config = hf().CONFIG_MAPPING["llama"](**BASE, attention_bias=True)
    with torch.device("meta"):
        theirs = hf().AutoModelForCausalLM.from_config(config)
    path = written(tmp_path, config)
    values = json.loads(path.read_text()) | {"attention_bias": False}
    path.write_text(json.dumps(values))
    assert our_shapes(read_config(path)) != shapes_of(theirs.parameters())
