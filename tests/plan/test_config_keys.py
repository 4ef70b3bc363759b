"""What is said of a config.json beside its shape, and how a bad one is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.config_cases import BASE, ERNIE, GPT, LATENT, MIXTRAL, NEO, QWEN_MOE, Keys
from torchtally.errors import UsageError
from torchtally.plan.architecture.config import FAMILIES, WRAPPERS, from_values, read_config
from torchtally.plan.architecture.config_keys import defaults
from torchtally.plan.architecture.model import Experts, Model
from torchtally.plan.architecture.weights import weights_of

LLAMA: Keys = BASE | {"model_type": "llama"}


def model_from(values: Mapping[str, Any]) -> Model:
    return from_values(values, name="it", place="its/config.json")


def error_of(values: Mapping[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        model_from(values)
    return str(caught.value)


def test_dtype_under_its_old_name_and_its_new() -> None:
    assert model_from(LLAMA | {"torch_dtype": "bfloat16"}).dtype == "bfloat16"
    assert model_from(LLAMA | {"dtype": "float16"}).dtype == "float16"
    assert model_from(LLAMA | {"dtype": "auto"}).dtype is None
    assert model_from(LLAMA).dtype is None


def test_quantised_weights_are_counted_as_trained() -> None:
    model = model_from(LLAMA | {"quantization_config": {"quant_method": "gptq", "bits": 4}})
    assert model.notes == ("quantised by 'gptq': weights are counted as before quantisation",)
    assert model.kinds == model_from(LLAMA).kinds


def test_code_of_its_own_is_never_run() -> None:
    known = model_from(LLAMA | {"auto_map": {"AutoModel": "evil.Evil"}})
    assert known.notes == ("its own code (auto_map) is not run: read as transformers' class llama",)
    message = error_of(LLAMA | {"model_type": "mine", "auto_map": {"AutoModel": "evil.Evil"}})
    assert message.startswith("its/config.json: model_type 'mine': it is defined by code of its")
    assert "--layers" in message


def test_a_family_that_looks_like_llama_is_not_guessed() -> None:
    message = error_of(LLAMA | {"model_type": "llamma"})
    assert "may mean something else than another family's" in message
    assert "Did you mean llama," in message


def test_another_head_is_named() -> None:
    model = model_from(LLAMA | {"architectures": ["LlamaForSequenceClassification"]})
    assert model.notes == (
        "the file describes a 'LlamaForSequenceClassification': counted with a language-model head",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None}, "hidden_size: is missing; expected a whole number"),
        ({"hidden_size": "48"}, "hidden_size: expected a whole number from 1 to 1_000_000_000"),
        ({"hidden_size": 48.0}, "found 48.0"),
        ({"hidden_size": True}, "found True"),
        ({"hidden_size": -48}, "found -48"),
        ({"vocab_size": 0}, "found 0"),
        ({"vocab_size": 10**400}, "found 1000"),
        ({"num_hidden_layers": 10**8}, "expected at most 100,000 layers, got 100,000,000"),
        ({"num_attention_heads": 7}, "head_dim: is missing, and 7 heads do not divide the width"),
        ({"num_key_value_heads": 4}, "num_key_value_heads: 4 do not divide 6 heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: expected true or false, found"),
        ({"hidden_act": 3}, "hidden_act: expected a string, found 3"),
        ({"model_type": None}, "model_type: is missing"),
        ({"model_type": ["llama"]}, "model_type: expected a string"),
        ({"is_encoder_decoder": True}, "encoder-decoder models are not supported"),
        ({"model_type": "gpt_oss"}, "num_local_experts or num_experts: is missing"),
        ({"model_type": "gemma2", "layer_types": ["linear"] * 3}, "layer_types: expected one of"),
        ({"model_type": "gemma2", "layer_types": []}, "expected 3 entries, one per layer, found 0"),
        ({"model_type": "gemma2", "layer_types": "full"}, "layer_types: expected a list"),
        ({"model_type": "qwen2_moe", "mlp_only_layers": [9]}, "expected layers from 0 to 2"),
        ({"model_type": "llava", "text_config": 3}, "text_config: expected a table, found 3"),
        ({"model_type": "llava", "text_config": {"model_type": "llava"}}, "is not a text model"),
        ({"model_type": "gpt_neo", "attention_types": [3]}, "expected [pattern, count], found 3"),
        ({"model_type": "phi", "resid_pdrop": 2}, "expected a number from 0 to 1, found 2"),
    ],
)
def test_what_is_wrong_is_named(change: Keys, message: str) -> None:
    values = QWEN_MOE | {"model_type": "llama", "num_layers": 3, "num_heads": 6} | change
    if change == {"model_type": "gpt_oss"}:
        del values["num_experts"]
    text = error_of(values)
    assert message in text
    assert "--layers" in text
    assert len(text) < 400


def test_more_experts_chosen_than_there_are() -> None:
    values = MIXTRAL | {"model_type": "mixtral", "num_experts_per_tok": 9}
    assert "9 of 5 experts per token is impossible" in error_of(values)


def test_what_is_not_built_is_left_out_by_name() -> None:
    model = model_from(LATENT | {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1})
    assert model.left_out == ("1 multi-token prediction module (--mtp 1)",)
    experts = model.kinds[1].feed_forward
    assert isinstance(experts, Experts)
    assert (experts.experts, experts.active, experts.shared_width) == (5, 2, 78)


ODD = st.sampled_from(
    [None, True, False, 0, -1, 1, 2, 3, 7, 48, 10**12, 0.5, -0.5, float("nan"), float("inf"), "",
     "silu", "llama", "\x1b[2J", [], [0], [1, 1, 1], ["full_attention"] * 3, [[["local"], 3]], [{}],
     {}, {"model_type": "llama"}, BASE | {"model_type": "qwen3"}]
)  # fmt: skip
KEYS = sorted({key for row in defaults().values() for key in row} | {
    "layer_types", "num_local_experts", "text_config", "architectures", "quantization_config",
    "dtype", "mlp_only_layers", "moe_layers", "attention_types", "head_dim", "n_routed_experts",
})  # fmt: skip


@given(
    st.sampled_from(sorted({*FAMILIES, *WRAPPERS})),
    st.dictionaries(st.sampled_from(KEYS), ODD, max_size=4),
)
def test_any_file_is_a_model_or_an_error_for_the_user(model_type: str, changes: Keys) -> None:
    whole = ERNIE | LATENT | QWEN_MOE | GPT | NEO | {"ffn_dim": 58, "d_model": 48, "n_heads": 6}
    whole |= {"n_layers": 4, "model_type": model_type, "intermediate_size_mlp": 72}
    try:
        model = model_from(whole | changes)
    except UsageError as error:
        assert str(error).startswith(("its/config.json", "its/config.json: text_config"))  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
        return
    weights = weights_of(model)
    assert all(weight.elements > 0 and 0 <= weight.uses <= 1 for weight in weights)
    assert model.layers > 0


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"\xff\xfe", b"{", b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}"]
)
def test_what_is_no_config_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"cannot be read|not a config"):
        read_config(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_config(tmp_path / "config.json")
    with pytest.raises(UsageError, match="there is no such file"):
        read_config(tmp_path)
