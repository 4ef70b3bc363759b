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

import torch

from torchtally.checkpoints.checked import read_as
from torchtally.checkpoints.folder import FOLDER, Checkpoints
from torchtally.checkpoints.manifest import Manifest, explain_damaged_state
from torchtally.checkpoints.newest import manifest_if_whole
from torchtally.checkpoints.ranks import ALONE
from torchtally.checkpoints.storage import read, torch_dtype
from torchtally.errors import CheckpointError, UsageError
from torchtally.train.data.description import description_in
from torchtally.train.data.tokenizer import Tokenizer, tokenizer_json, tokenizer_of, tokenizer_text
from torchtally.train.models.config import TransformerConfig
from torchtally.train.models.gguf_file import write_gguf
from torchtally.train.models.huggingface import read_weights, write_weights
from torchtally.train.models.huggingface_config import CONFIG, read_config
from torchtally.train.models.quantised import quantise
from torchtally.train.models.transformer import Transformer
from torchtally.train.sampling import continue_prompt
from torchtally.train.trainer import ARCHITECTURE

TOKENIZER = "tokenizer.json"
MODEL = "model/"


@dataclass(frozen=True, slots=True)
class Trained:
    """A model in evaluation mode, on the CPU in the dtype of its weights."""

    model: Transformer
    tokenizer_json: str | None
    """None if it is not there any more."""
    source: str
    """Where it is from."""
    step: int | None
    """None for a folder of transformers."""
    validation: tuple[str, ...] = ()
    """Token files of its run, or folders of them."""

    def tokenizer(self) -> Tokenizer | None:
        """Raises UsageError if it is invalid."""
        return (
            None if self.tokenizer_json is None else tokenizer_of(self.tokenizer_json, self.source)
        )


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
            raise UsageError(f"{path}: is a transformers model, which has no steps to choose from.")
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
    trained: Trained, prompt: str, *, tokens: int, seed: int = 1, **options: Any
) -> Continuation:
    """The prompt and so many tokens more; options are those of `sampling.sample`.

    Raises UsageError where the tokenizer is unknown.
    """
    if (tokenizer := trained.tokenizer()) is None:
        raise UsageError(
            f"{trained.source}: cannot sample text, since the tokenizer of the data is unknown. It "
            "is in the folder of `tally data prepare` that data.train names."
        )
    drawn, text = continue_prompt(
        trained.model, tokenizer, prompt, tokens=tokens, seed=seed, **options
    )
    return Continuation(trained.source, trained.step, seed, len(drawn) - tokens, drawn, text)


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
    model, tokenizer = trained.model, trained.tokenizer()
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
    return [CONFIG, "model.safetensors", *_write_tokenizer(trained, place, end)], bool(tokenizer)


def _write_tokenizer(trained: Trained, folder: Path, end: int | None) -> list[str]:
    """The tokenizer's files, if it is known."""
    if trained.tokenizer_json is None:
        return []
    (folder / TOKENIZER).write_text(trained.tokenizer_json, encoding="utf-8")
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": trained.model.config.context,
        "clean_up_tokenization_spaces": False,
    }
    added = json.loads(trained.tokenizer_json).get("added_tokens", ())
    names = [str(token["content"]) for token in added if token.get("id") == end]
    about |= {"eos_token": names[0]} if names else {}
    text = json.dumps(about, indent=2) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    return [TOKENIZER, "tokenizer_config.json"]


def _of_run(path: Path, step: int | None) -> Trained:
    checkpoints = Checkpoints(path, follows_links=True)
    manifest = _whole(checkpoints, step)
    with torch.device("meta"):
        model = Transformer(_architecture(manifest, str(checkpoints.path)))
    with explain_damaged_state(manifest):
        dtype = torch_dtype(manifest.tensors[f"{MODEL}embedding.weight"])
    model = model.to(dtype).to_empty(device="cpu").eval()
    read({f"{MODEL}{n}": tensor for n, tensor in model.state_dict().items()}, checkpoints, manifest)
    place = f"{checkpoints.path}, step {manifest.step}"
    validation = tuple(map(str, _data_folders(path, manifest, "validation")))
    return Trained(model, _tokenizer_json(path, manifest), place, manifest.step, validation)


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
        manifest = manifest_if_whole(checkpoints, candidate, ALONE)
        if isinstance(manifest, Manifest):
            return manifest
    raise CheckpointError(manifest)


def _architecture(manifest: Manifest, place: str) -> TransformerConfig:
    saved: Any = manifest.state.get(ARCHITECTURE)
    if saved is None:  # a teacher's, or of code of the user's own
        raise UsageError(f"{place}: the model is not a decoder of `tally train`.")
    with explain_damaged_state(manifest):
        return read_as(TransformerConfig, saved, f"{place}: {ARCHITECTURE}")


def _tokenizer_json(run: Path, manifest: Manifest) -> str | None:
    """The text of the data's tokenizer.json; None where it is gone or unknown."""
    for folder in _data_folders(run, manifest):
        with suppress(UsageError):
            description = description_in(str(folder))
            if description is not None:
                return tokenizer_json(str(folder), description)
    return None


def _data_folders(run: Path, manifest: Manifest, split: str = "train") -> Iterator[Path]:
    """Folders of tokens of this split; of validation data, files of their own come first."""
    data = manifest.config.get("data")
    if isinstance(data, dict):
        if data.get("text"):
            yield run / "data"
        yield from (Path(str(path)) for path in data.get(split) or data.get("train") or ())


def _of_transformers(path: Path) -> Trained:
    config = read_config(path)
    model = Transformer(config)
    read_weights(model, path)
    text = tokenizer_text(str(path / TOKENIZER)) if (path / TOKENIZER).exists() else None
    return Trained(model.eval(), text, str(path), None)
