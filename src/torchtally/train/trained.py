"""Trained decoders on disk: a run's newest whole checkpoint, or a folder of transformers.

`load_trained` opens either, and `export` writes a folder that transformers loads, or a file that
llama.cpp does: weights, config, and the tokenizer of the data.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from torchtally.checkpoints.folder import FOLDER, Checkpoints
from torchtally.checkpoints.manifest import Manifest
from torchtally.checkpoints.storage import read, torch_dtype
from torchtally.errors import CheckpointError, UsageError
from torchtally.train.config import config_of
from torchtally.train.data.description import BYTE_TOKENIZER, description_in
from torchtally.train.data.tokenizer import (
    BytePairTokenizer,
    ByteTokenizer,
    Tokenizer,
    byte_tokenizer_text,
    tokenizer_text,
)
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.gguf_file import write_gguf
from torchtally.train.models.huggingface import read_weights, write_weights
from torchtally.train.models.huggingface_config import CONFIG, read_config
from torchtally.train.models.quantised import quantise
from torchtally.train.models.rotary import Rotary
from torchtally.train.models.transformer import Transformer
from torchtally.train.sampling import sample
from torchtally.train.trainer import ARCHITECTURE

TOKENIZER = "tokenizer.json"
MODEL = "model/"


@dataclass(frozen=True, slots=True)
class Trained:
    """A model in evaluation mode, on the CPU in the dtype of its weights."""

    model: Transformer
    tokenizer: Tokenizer | None
    """None if it is not there any more."""
    tokenizer_json: str | None
    source: str
    """Where it is from."""
    step: int | None
    """None for a folder of transformers."""
    validation: tuple[str, ...] = ()
    """Token files of its run, or folders of them."""


def load_trained(path: Path | str, step: int | None = None) -> Trained:
    """The model of a run's folder, after this step or the newest that is whole; or of a folder with
    a config.json.

    Raises UsageError for a folder with neither, and CheckpointError for damaged files.
    """
    path = Path(path)
    if (path / FOLDER).is_dir():
        return _of_run(path, step)
    if (path / CONFIG).is_file():
        if step is not None:
            raise UsageError(f"{path}: is a model of transformers, which has no steps.")
        return _of_transformers(path)
    raise UsageError(
        f"{path}: neither the folder of a run with {FOLDER}/ in it nor a model with {CONFIG}."
    )


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt and what a model continued it with."""

    source: str
    step: int | None
    seed: int
    prompt_tokens: int
    tokens: list[int]
    """Of the prompt, too."""
    text: str


def continue_text(
    trained: Trained,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 1,
) -> Continuation:
    """The prompt and so many tokens more, see `sampling.sample`.

    Raises UsageError where the tokenizer is unknown.
    """
    if trained.tokenizer is None:
        raise UsageError(
            f"{trained.source}: cannot sample text, since the tokenizer of the data is unknown. It "
            "is in the folder of `tally data prepare` that data.train names."
        )
    chunks = trained.tokenizer.encode([prompt.encode(errors="surrogateescape")])
    ids = torch.tensor([[int(token) for chunk in chunks for token in chunk]], dtype=torch.int64)
    drawn = sample(
        trained.model, ids, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed
    )[0].tolist()
    text = trained.tokenizer.decode(drawn)
    return Continuation(trained.source, trained.step, seed, ids.shape[1], drawn, text)


def export(
    trained: Trained,
    place: Path | str,
    *,
    dtype: str | None = None,
    weights: str | None = None,
    is_gguf: bool = False,
) -> tuple[list[str], bool]:
    """Write the model as a folder for transformers or as one GGUF file, in this dtype by torch's
    name, its matrices quantised to these weights. What was written, and whether a tokenizer was.

    Raises UsageError, before writing, if transformers or llama.cpp has no such model.
    """
    place = Path(place)
    model, tokenizer = trained.model, trained.tokenizer
    end = None if tokenizer is None else tokenizer.end_of_document
    if dtype is not None:
        model.to(getattr(torch, dtype))
    if is_gguf:
        text = trained.tokenizer_json
        has_tokenizer = write_gguf(
            model, place, weights=weights, tokenizer_json=text, end_of_text=end
        )
        return ["config, weights" + (", tokenizer" if has_tokenizer else "")], has_tokenizer
    if weights is not None:
        quantise(model, weights)
    write_weights(model, place, end_of_text=end, quantised=weights)
    return [CONFIG, "model.safetensors", *_write_tokenizer(trained, place)], tokenizer is not None


def _write_tokenizer(trained: Trained, folder: Path) -> list[str]:
    """The tokenizer's files, if it is known."""
    if trained.tokenizer_json is None or trained.tokenizer is None:
        return []
    (folder / TOKENIZER).write_text(trained.tokenizer_json, encoding="utf-8")
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": trained.model.config.context,
        "clean_up_tokenization_spaces": False,
    }
    end = trained.tokenizer.end_of_document
    if end is not None and (name := _token_name(trained.tokenizer_json, end)) is not None:
        about |= {"eos_token": name}
    text = json.dumps(about, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return [TOKENIZER, "tokenizer_config.json"]


def _of_run(path: Path, step: int | None) -> Trained:
    checkpoints = Checkpoints(path, follows_links=True)
    manifest = _whole(checkpoints, step)
    config = _architecture(manifest, str(checkpoints.path))
    model = _empty(config)
    tensors = {
        name: torch.empty(saved.shape, dtype=torch_dtype(saved))
        for name, saved in manifest.tensors.items()
        if name.startswith(MODEL)
    }
    read(tensors, checkpoints, manifest)
    _fill(model, {name.removeprefix(MODEL): value for name, value in tensors.items()}, manifest)
    tokenizer_json = _tokenizer_json(path, manifest)
    place = f"{checkpoints.path}, step {manifest.step}"
    tokenizer = _tokenizer(tokenizer_json, place)
    validation = tuple(map(str, _data_folders(path, manifest, "validation")))
    return Trained(model, tokenizer, tokenizer_json, place, manifest.step, validation)


def _whole(checkpoints: Checkpoints, step: int | None) -> Manifest:
    """The checkpoint of a step, or the newest one that is whole. Nothing is set aside: a training
    may be running there.
    """
    steps = checkpoints.steps()
    if not steps or step not in (None, *steps):
        there = ", ".join(map(str, reversed(steps))) or "none"
        raise UsageError(
            f"{checkpoints.path}: no checkpoint{'' if step is None else f' of step {step}'}. "
            f"There are: {there}."
        )
    for candidate in steps if step is None else [step]:
        try:
            manifest = checkpoints.manifest(candidate)
            checkpoints.check(manifest)
        except CheckpointError as error:
            failure = error
        else:
            return manifest
    raise failure


def _architecture(manifest: Manifest, place: str) -> TransformerConfig:
    saved: Any = manifest.state.get(ARCHITECTURE)
    if saved is None:
        if not isinstance(manifest.config.get("model"), dict):
            raise UsageError(f"{place}: is not a decoder's of `tally train`.")
        config = config_of(manifest.config, place)
        if config.task != "language":
            raise UsageError(f"{place}: task {config.task!r} is not a decoder.")
        if config.model.code is not None:
            raise UsageError(f"{place}: {config.model.code} is not a decoder of `tally train`.")
        return config.model.transformer()
    try:
        return msgspec.convert(saved, TransformerConfig)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{place}: {ARCHITECTURE}: {error}.") from error


def _empty(config: TransformerConfig) -> Transformer:
    """Without values, but for the tables of rotary positions."""
    with torch.device("meta"):
        model = Transformer(config)
    for module in model.modules():
        if isinstance(module, Rotary):
            module.to_empty(device="cpu")
    return model.eval()


def _fill(model: Transformer, tensors: dict[str, Tensor], manifest: Manifest) -> None:
    try:
        model.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"The checkpoint of step {manifest.step} is of another model: {error}"
        ) from error


def _tokenizer_json(run: Path, manifest: Manifest) -> str | None:
    """The text of the data's tokenizer.json; None where it is gone or unknown."""
    for folder in _data_folders(run, manifest):
        with suppress(UsageError):
            description = description_in(str(folder))
            if description is None:
                continue
            if description.tokenizer == BYTE_TOKENIZER:
                return byte_tokenizer_text()
            return tokenizer_text(str(folder / description.tokenizer))
    return None


def _data_folders(run: Path, manifest: Manifest, split: str = "train") -> Iterator[Path]:
    """Where tokens of this split are; of validation data, files of their own come first."""
    data = manifest.config.get("data")
    if isinstance(data, dict):
        if data.get("text"):
            yield run / "data"
        yield from (Path(str(path)) for path in data.get(split) or data.get("train") or ())


def _of_transformers(path: Path) -> Trained:
    config = read_config(path)
    model = Transformer(config)
    read_weights(model, path)
    tokenizer_json = tokenizer_text(str(path / TOKENIZER)) if (path / TOKENIZER).exists() else None
    tokenizer = _tokenizer(tokenizer_json, str(path / TOKENIZER))
    return Trained(model.eval(), tokenizer, tokenizer_json, str(path), None)


def _tokenizer(text: str | None, place: str) -> Tokenizer | None:
    if text is None:
        return None
    if text == byte_tokenizer_text():
        return ByteTokenizer()
    try:
        return BytePairTokenizer(text, place=place)
    except UsageError:  # no token with a usual name for the end of a document
        return BytePairTokenizer(text, place=place, end_of_document="none")


def _token_name(tokenizer_json: str, token: int) -> str | None:
    for added in json.loads(tokenizer_json).get("added_tokens", ()):
        if added.get("id") == token:
            return str(added["content"])
    return None
