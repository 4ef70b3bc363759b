"""A model that was trained leaves the house: transformers computes its logits and continues its
text, and a training goes on from it.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.train.test_what_was_trained import train
from tests.train.training import TINY, language, teacher
from torchtally.cli import main
from torchtally.train.config import TrainConfig
from torchtally.train.data.prepare import PrepareRequest, prepare
from torchtally.train.data.tokenizer import BytePairTokenizer, ByteTokenizer, byte_tokenizer_text
from torchtally.train.models.quantised import quantise
from torchtally.train.trained import load_trained
from torchtally.train.trainer import trainer_of

PROMPT = "line 7: é\n"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """A run of four steps, with checkpoints of the last two."""
    folder = tmp_path_factory.mktemp("run")
    model = TINY | {"rope_theta": 500.0, "rope_stretch": {"factor": 4.0, "original_context": 16}}
    config = language(folder, steps=4, model=model, checkpoint={"every": 1})
    train(config)
    return config


def tally(*words: str) -> int:
    return main([*words])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) != 0
    return capsys.readouterr().err


def sampled(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["sample", *words, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_computes_the_same(
    dtype: str, trained: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tally("export", trained.log.folder, "--to", "hf", "-o", str(tmp_path), "--dtype", dtype) == 0  # fmt: skip # noqa: E501
    said = capsys.readouterr().out
    # 2 x 257 x 32 + 2 layers of (2 x 32 + 32 x 64 + 32 x 32 + 3 x 32 x 64) + 32
    assert f"step 4: 35.04 K parameters in {dtype}" in said
    assert "config.json, model.safetensors, tokenizer.json, tokenizer_config.json" in said
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path)
    assert str(theirs.dtype) == f"torch.{dtype}"
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    assert ids.tolist() == [[*PROMPT.encode()]]
    assert tokenizer.decode(ids[0]) == PROMPT
    assert (tokenizer.eos_token_id, theirs.config.eos_token_id) == (256, 256)
    if dtype == "float32":
        ours = load_trained(trained.log.folder).model
        with torch.no_grad():
            torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)
        greedy = ("--prompt", PROMPT, "--tokens", "8", "--temperature", "0")
        for place in (trained.log.folder, str(tmp_path)):
            tokens = sampled(capsys, place, *greedy)
            generated = theirs.generate(ids, max_new_tokens=8, do_sample=False, eos_token_id=None)
            assert tokens["token_ids"] == generated[0].tolist()
            assert tokens["text"].startswith(PROMPT)


@pytest.mark.thorough("the exports beside it")
def test_weights_of_fewer_bits(
    trained: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 35040 parameters 2 x (32 x 64 + 32 x 32 + 3 x 32 x 64) = 18432 are in layers' matrices,
    in 2 x (64 + 32 + 64 + 64 + 32) rows; 14 tensors say their shapes in 16 bytes.
    """
    pytest.importorskip("torchao", reason="torchao quantises")
    assert main(["sample", trained.log.folder, "--weights", "all", "--tokens", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {row["weight_format"]: row for row in document["rows"]}
    rest = 4 * (35040 - 18432)
    assert {name: row["bytes"] for name, row in rows.items()} == {
        "float32": 4 * 35040,
        "int8": rest + 18432 + 4 * 512 + 14 * 16,
        "fp8": rest + 18432 + 4 * 512,
        "int4": rest + 18432 // 2 + 4 * 18432 // 32 + 14 * 16,
    }
    assert all(row["tokens_per_s_each"] > 0 for row in rows.values())
    assert all(row["validation_loss"] == pytest.approx(5.5, abs=0.5) for row in rows.values())
    assert len({row["validation_loss"] for row in rows.values()}) == 4
    assert main(["sample", trained.log.folder, "--weights", "int4", "--tokens", "2"]) == 0
    pytest.importorskip("compressed_tensors", reason="transformers loads the format by it")
    out = ("--to", "hf", "-o", str(tmp_path), "--weights", "fp8")
    assert tally("export", trained.log.folder, *out) == 0
    assert "float32, matrices of layers in fp8" in capsys.readouterr().out
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[*PROMPT.encode()]])
    ours = load_trained(trained.log.folder).model
    quantise(ours, "fp8")
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)


def test_one_file_for_llama_cpp(
    trained: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf: Any = pytest.importorskip("gguf", reason="gguf writes the file")
    file = str(tmp_path / "models" / "mine.gguf")
    out = ("export", trained.log.folder, "--to", "gguf", "-o", file)
    assert tally(*out, "--dtype", "bfloat16") == 0
    assert f"{file}: config, weights, tokenizer" in capsys.readouterr().out
    reader = gguf.GGUFReader(file)
    keys = ("general.architecture", "llama.rope.freq_base", "tokenizer.ggml.eos_token_id")
    assert [reader.get_field(key).contents() for key in keys] == ["llama", 500.0, 256]
    assert len(reader.get_field("tokenizer.ggml.tokens").contents()) == 257
    norms = [tensor for tensor in reader.tensors if tensor.tensor_type.name == "F32"]
    assert len(norms) == 2 * 2 + 1 + 1  # of two layers and the end, and the slowing of pairs
    assert "add --replace to overwrite it" in refused(capsys, *out)
    assert tally(*out, "--replace", "--weights", "int4") == 0


def test_lm_eval_opens_the_export(trained: TrainConfig, tmp_path: Path) -> None:
    """It puts a space at the end of the context in front of the continuation."""
    models: Any = pytest.importorskip("lm_eval.models.huggingface", reason="lm-eval judges")
    instance: Any = pytest.importorskip("lm_eval.api.instance").Instance
    assert tally("export", trained.log.folder, "--to", "hf", "-o", str(tmp_path)) == 0
    judge = models.HFLM(pretrained=str(tmp_path), device="cpu", batch_size=1)
    request = instance("loglikelihood", {}, ("line ", "7: é"), 0)
    ((answer, _),) = judge.loglikelihood([request], disable_tqdm=True)
    ids = torch.tensor([[*"line 7: é".encode()]])
    with torch.no_grad():
        logits = load_trained(trained.log.folder).model(ids)
    shares = torch.log_softmax(logits, dim=-1)[0, 3:-1].gather(1, ids[0, 4:, None])
    assert answer == pytest.approx(float(shares.sum()), abs=1e-3)


def test_a_training_goes_on_from_the_export_alone(trained: TrainConfig, tmp_path: Path) -> None:
    folder = str(tmp_path / "model")
    assert tally("export", trained.log.folder, "--to", "hf", "-o", folder) == 0
    config = language(tmp_path, model={"weights": folder})
    assert config.model.transformer() == trained.model.transformer()
    ours, exported = trainer_of(config).model, load_trained(trained.log.folder).model
    for name, value in exported.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name


@pytest.mark.thorough
def test_a_sample_is_drawn_from_the_seed(
    trained: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    first, again, other = (
        sampled(capsys, trained.log.folder, "--tokens", "12", "--seed", seed)["token_ids"]
        for seed in ("1", "1", "2")
    )
    assert first == again != other
    assert len(first) == 13  # of them the prompt's line end
    assert tally("sample", trained.log.folder, "--tokens", "3", "--step", "3") == 0
    assert capsys.readouterr().out.startswith("\n")


def test_a_damaged_checkpoint_is_passed_over_and_left_there(
    trained: TrainConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(trained.log.folder, "checkpoints", "step-00000004", "model.safetensors")
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    try:
        assert load_trained(trained.log.folder).step == 3
        assert "model.safetensors: has " in refused(capsys, "sample", trained.log.folder, "--step", "4")  # fmt: skip # noqa: E501
        assert file.exists()
    finally:
        file.write_bytes(whole)


@pytest.mark.thorough("the exports beside it")
def test_byte_pairs_and_bfloat16_weights(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four\n" * 500)
    prepare(PrepareRequest((str(text),), str(tmp_path / "data"), vocabulary_size=270))
    config = language(
        tmp_path, steps=1, precision="bf16-master", data={"train": [str(tmp_path / "data")]},
        model=TINY | {"vocabulary": 270},
    )  # fmt: skip
    train(config)
    out = tmp_path / "model"
    assert tally("export", config.log.folder, "--to", "hf", "-o", str(out)) == 0
    theirs: Any = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert theirs.dtype == torch.bfloat16
    tokenizer: Any = AutoTokenizer.from_pretrained(out)
    ours = load_trained(config.log.folder).tokenizer()
    assert isinstance(ours, BytePairTokenizer)
    ids = [int(token) for chunk in ours.encode([b"one two three"]) for token in chunk]
    assert tokenizer("one two three").input_ids == ids
    assert len(ids) < 13


def test_bytes_as_byte_pairs_without_merges() -> None:
    pairs = BytePairTokenizer(byte_tokenizer_text(), place="x")
    assert (pairs.vocabulary_size, pairs.end_of_document) == (257, 256)
    every = "".join(map(chr, range(0x300))).encode()
    for tokenizer in (pairs, ByteTokenizer()):
        ids = [int(token) for chunk in tokenizer.encode([every]) for token in chunk]
        assert bytes(ids) == every
        assert tokenizer.decode(ids).encode() == every


def test_what_cannot_be_exported_is_named(
    trained: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "model")
    to = ("--to", "hf", "-o", out)
    assert "neither the folder of a run" in refused(capsys, "export", str(tmp_path), *to)
    run = trained.log.folder
    text = refused(capsys, "export", run, "--step", "1", *to)
    assert "no checkpoint of step 1. There are: 3, 4." in text
    linear = teacher(tmp_path, steps=1)
    train(linear)
    assert "the model is not a decoder of" in refused(capsys, "export", linear.log.folder, *to)
    assert not Path(out).exists()
    assert tally("export", run, *to) == 0
    assert "already has a model" in refused(capsys, "export", run, *to)
    assert tally("export", run, *to, "--replace") == 0
    assert "has no steps" in refused(capsys, "sample", out, "--step", "1")


def test_without_its_data_a_model_has_no_tokenizer(
    trained: TrainConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(trained.log.folder, "data")
    data.rename(tmp_path / "moved")
    try:
        error = refused(capsys, "sample", trained.log.folder)
        assert "the tokenizer of the data is unknown" in error
        assert tally("export", trained.log.folder, "--to", "hf", "-o", str(tmp_path / "m")) == 0
        assert "without a tokenizer" in capsys.readouterr().out
    finally:
        (tmp_path / "moved").rename(data)
