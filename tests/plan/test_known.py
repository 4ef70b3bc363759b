"""Every row of the table of models counts to what its authors print, or says why it does not."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from torchtally.errors import UsageError
from torchtally.plan.architecture.known import (
    KnownModel,
    _alone,
    essence,
    known_model,
    known_models,
)
from torchtally.plan.architecture.lookup import model
from torchtally.plan.architecture.model import Model, SelfAttention
from torchtally.plan.architecture.shapes import NEAR, by_hand, scale_to
from torchtally.plan.architecture.weights import weights_of
from torchtally.plan.parameters import parameters

UNITS = {"": 1, "M": 10**6, "B": 10**9, "T": 10**12}
NAMES = [row.name for row in known_models()]


def row_of(name: str) -> KnownModel:
    return next(row for row in known_models() if row.name == name)


def printed(text: str) -> tuple[float, float]:
    """A count as printed, and one unit of its last digit: it may have been rounded or cut there.

    Zeros at a whole number's end are no digits: 174600M is 174604M, 70B is 69.0B and 70.6B.
    """
    match = re.fullmatch(r"([\d.]+)([MBT]?)", text)
    assert match is not None, text
    digits, unit = match[1], UNITS[match[2]]
    decimals = len(digits.partition(".")[2])
    zeros = 0 if decimals else len(digits) - len(digits.rstrip("0"))
    return float(digits) * unit, 10 ** (zeros - decimals) * unit if unit > 1 else 1


def agrees(text: str, counted: float) -> bool:
    value, step = printed(text)
    return abs(value - counted) < step


def count(config: Model) -> int:
    return sum(weight.elements for weight in weights_of(config))


def embedding(config: Model) -> int:
    return next(weight.elements for weight in weights_of(config) if weight.name == "embedding")


@pytest.mark.parametrize("name", NAMES)
def test_a_row_counts_to_what_is_printed(name: str) -> None:
    row = row_of(name)
    read = row.model()
    assert row.published or row.published_inner
    assert "http" in row.source
    if row.published:
        assert agrees(row.published, count(read)) is not bool(row.difference)
    if row.published_inner:
        assert agrees(row.published_inner, count(read) - embedding(read))


@pytest.mark.parametrize("name", [row.name for row in known_models() if row.published_active])
def test_a_mixture_meets_as_many_as_is_printed(name: str) -> None:
    """Papers count with the embedding, without it, or without head and embedding."""
    row = row_of(name)
    read = row.model()
    active, table = int(parameters(read).active.value), embedding(read)
    assert any(agrees(row.published_active, active - n * table) for n in range(3))


def test_what_is_printed_is_read_as_it_is_rounded() -> None:
    assert agrees("1.5B", 1_499_000_000)
    assert agrees("1.5B", 1_599_000_000)
    assert not agrees("1.5B", 1_601_000_000)
    assert agrees("7241732096", 7241732096)
    assert not agrees("7241732096", 7241732097)
    assert agrees("174600M", 174_604_259_328)
    assert not agrees("174.60B", 174_616_000_000)


def test_a_wrong_row_would_be_seen() -> None:
    row = row_of("GPT-2 124M")
    assert row.config is not None
    wrong = replace(row, config=dict(row.config) | {"n_layer": 13})
    assert not agrees(row.published, count(wrong.model()))


def test_there_are_the_models_that_people_ask_for() -> None:
    assert len(NAMES) >= 100
    assert len(set(NAMES)) == len(NAMES)
    for name in (
        "gpt2", "GPT-3 175B", "gpt3", "GPT-J 6B", "GPT NeoX 20B", "OPT 175B", "bloom", "palm",
        "LLaMA 65B", "llama-2-70b", "Llama 3 8B", "llama-3.1-405b", "llama3.2 1b", "Mistral 7B",
        "mixtral-8x7b", "mixtral 8x22b", "Qwen2.5-7B", "qwen3-30b-a3b", "Qwen3-235B-A22B",
        "gemma-2-9b", "gemma 3 27b", "phi-3-mini", "OLMo-2-7B", "deepseek-v2", "DeepSeek V3",
        "gpt-oss-20b", "GPT_OSS 120B", "chinchilla", "gopher", "MT-NLG 530B", "Megatron 1T",
    ):  # fmt: skip
        assert known_model(name).layers > 0


def test_exact_counts_that_anybody_can_look_up() -> None:
    assert count(known_model("Mistral 7B")) == 7_241_732_096
    assert count(known_model("Llama 3 8B")) == 8_030_261_248
    assert count(known_model("Mixtral 8x7B")) == 46_702_792_704


def test_rows_that_differ_in_kind() -> None:
    gemma = known_model("gemma-3-27b")
    assert [(kind.count, kind.attention.window) for kind in gemma.kinds] == [(52, 1024), (10, None)]
    assert gemma.notes == ("its text part: a vision encoder of 417M parameters is not counted",)
    deepseek = known_model("deepseek-v3")
    assert [kind.count for kind in deepseek.kinds] == [3, 58]
    assert deepseek.left_out == ("1 multi-token prediction module (--mtp 1)",)
    palm = known_model("palm").kinds[0]
    assert isinstance(palm.attention, SelfAttention)
    assert (palm.attention.kv_heads, palm.norms) == (1, 1)
    assert known_model("gpt3").source == "https://arxiv.org/abs/2005.14165, tables 2.1 and D.1"


# Names.


@pytest.mark.parametrize(
    "name", ["Llama-3.1-8B", "llama 3.1 8b", "LLAMA_3_1_8B", "meta-llama/Meta-Llama-3.1-8B"]
)
def test_spelling_does_not_matter(name: str) -> None:
    assert known_model(name).name == "Llama 3.1 8B"


@given(st.sampled_from(NAMES), st.sampled_from([" ", "-", "_", ""]), st.booleans())
def test_every_name_answers_however_it_is_written(name: str, dash: str, is_upper: bool) -> None:
    written = re.sub(r"[ -]", dash, name)
    assert known_model(written.upper() if is_upper else written.lower()).name == name


def error_of(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        model(name)
    return str(caught.value)


def test_a_name_that_could_be_many_lists_them() -> None:
    message = error_of("llama")
    assert message.startswith("No known model, file or folder is called 'llama'.")
    assert "It could be any of LLaMA 7B, LLaMA 13B" in message
    assert re.search(r"and \d+ more\.", message)
    assert "Llama 3.1 70B, Llama 3.1 405B" in error_of("llama-3.1")


def test_a_dot_matters_only_where_it_tells_two_apart() -> None:
    assert known_model("gpt-3 1.3b").layers == 24
    assert known_model("gpt-3 13b").layers == 40
    assert known_model("llama31 8b").name == "Llama 3.1 8B"
    twins = KnownModel(name="it", source=""), KnownModel(name="i.t", source="")
    assert _alone(twins) is None


def test_near_matches() -> None:
    assert "Did you mean Mistral 7B" in error_of("mistrall 7b")
    assert "could be" not in error_of("zzz")
    assert "--layers" in error_of("")


@given(st.text(max_size=30))
def test_any_text_is_a_model_or_an_error_for_the_user(text: str) -> None:
    try:
        model(text)
    except UsageError:
        return
    assert essence(text)


# Paths.

LLAMA = {
    "model_type": "llama", "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 101,
}  # fmt: skip


def test_a_path_to_a_config_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert model(str(tmp_path)) == model(str(tmp_path / "config.json"))
    assert model(str(tmp_path)).name == tmp_path.name


def test_a_name_is_a_path_only_where_the_table_has_no_such_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(LLAMA))
    assert model("gpt2").name == "GPT-2 124M"
    assert model("./gpt2").width == 48
    assert model("mine").width == 48


def test_a_path_to_nothing(tmp_path: Path) -> None:
    assert "there is no such file" in error_of(str(tmp_path / "config.json"))
    assert "there is no such file" in error_of(str(tmp_path))


def test_looking_up_imports_neither_torch_nor_numpy() -> None:
    """In a process of its own: one row. Either would take longer than all the rest."""
    script = (
        "import sys\n"
        "from torchtally.plan.architecture.lookup import model\n"
        "model('gpt2'); print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


# Shapes.


def test_gpt_2_by_hand() -> None:
    """12 d^2 and 13 d a layer, embeddings, and a last norm."""
    by_hand_model = by_hand(
        layers=12, width=768, heads=12, vocabulary=50257, is_tied=True, norm="layer",
        has_bias=True, positions=1024,
    )  # fmt: skip
    assert count(by_hand_model) == count(known_model("gpt2")) == 124_439_808
    assert by_hand_model.source == "sizes given by hand"


def test_what_is_not_given_follows_from_what_is() -> None:
    by_hand_model = by_hand(layers=2, width=96, heads=6, vocabulary=10, is_tied=False)
    attention, inner = by_hand_model.kinds[0].attention, by_hand_model.kinds[0].feed_forward
    assert isinstance(attention, SelfAttention)
    assert (attention.kv_heads, attention.head_dim, inner.width) == (6, 16, 384)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": 0}, "layers cannot be 0"),
        ({"width": -1}, "width cannot be -1"),
        ({"heads": 5}, "5 heads do not divide the width 96"),
        ({"kv_heads": 4}, "4 kv heads do not divide 6 heads"),
        ({"kv_heads": 0}, "kv heads cannot be 0"),
        ({"is_gated": True}, "A gated feed-forward has no default width"),
        ({"layers": 10**9}, "at most 100,000 layers, got 1,000,000,000"),
    ],
)
def test_sizes_that_cannot_be(change: dict[str, int], message: str) -> None:
    sizes = {"layers": 2, "width": 96, "heads": 6, "vocabulary": 10, "is_tied": False} | change
    with pytest.raises(UsageError, match=message):
        by_hand(**sizes)


def test_seventy_billion_is_a_usual_shape() -> None:
    scales = scale_to(70 * 10**9, vocabulary=32000)
    attention = scales.kinds[0].attention
    assert (scales.layers, scales.width, attention.heads, attention.head_dim) == (68, 9216, 72, 128)
    assert scales.notes[0].startswith("assumed shape: 68 layers of width 9216")
    assert "arXiv 2001.08361" in scales.source


SIZES = st.floats(8.5, 14).map(lambda power: int(10**power))


@given(SIZES, st.integers(1000, 260_000), st.booleans())
def test_a_made_up_shape_has_about_the_count_that_is_asked(
    size: int, vocabulary: int, is_tied: bool
) -> None:
    assume(vocabulary < 10**5 or size > 10**9)
    scales = scale_to(size, vocabulary=vocabulary, is_tied=is_tied)
    assert abs(count(scales) / size - 1) <= NEAR
    attention = scales.kinds[0].attention
    assert attention.heads * attention.head_dim == scales.width
    assert 60 <= scales.width / scales.layers <= 320


@given(SIZES, SIZES, st.integers(1000, 100_000))
def test_more_parameters_never_make_a_smaller_model(one: int, two: int, vocabulary: int) -> None:
    small, large = sorted((one, two))
    smaller = scale_to(small, vocabulary=vocabulary)
    assert count(smaller) <= count(scale_to(large, vocabulary=vocabulary))


def test_a_vocabulary_that_leaves_nothing_for_layers() -> None:
    with pytest.raises(UsageError, match=r"No usual shape.*Give --layers"):
        scale_to(10**6, vocabulary=256_000)


@pytest.mark.parametrize(
    ("hub", "name"),
    [
        ("meta-llama/Llama-3.1-8B", "Llama 3.1 8B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama 3.1 8B"),
        ("meta-llama/Llama-2-70b-chat-hf", "Llama 2 70B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama 3.1 70B"),
        ("Qwen/Qwen3-8B", "Qwen3 8B"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "Qwen3 30B-A3B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5 7B"),
        ("google/gemma-3-27b-it", "Gemma 3 27B"),
        ("deepseek-ai/DeepSeek-V3", "DeepSeek-V3"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral 8x7B"),
        ("openai-community/gpt2-xl", "GPT-2 1.5B"),
    ],
)
def test_names_of_the_hub(hub: str, name: str) -> None:
    assert known_model(hub).name == name


@pytest.mark.parametrize("name", ["mistralai/Mistral-7B-v0.3", "Llama-3.1-8B-bnb-4bit", "chat"])
def test_another_version_or_format_is_not_taken_for_the_first(name: str) -> None:
    with pytest.raises(UsageError, match="No known model"):
        known_model(name)
