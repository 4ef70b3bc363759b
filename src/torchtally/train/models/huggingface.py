"""Reading and writing weights as safetensors under the names of transformers, without pickle.

`write_weights` creates a folder that `from_pretrained` loads; `read_weights` takes such a folder,
one of its files, or the index of several.
"""

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torchtally.errors import UsageError
from torchtally.files.atomic import write_atomically
from torchtally.plan.architecture.checkpoint import WHOLE, Checkpoint, read_checkpoint
from torchtally.train.models.huggingface_config import CONFIG, config_document
from torchtally.train.models.huggingface_names import NO_WEIGHTS, WeightMapping, weight_mappings
from torchtally.train.models.quantised import quantization_config, tensors_of_rows
from torchtally.train.models.transformer import Transformer
from torchtally.train.tensor_file import write_tensors

GPT2_BASE = "transformer."
"""Prefix of GPT-2's names, unless the checkpoint is of the model without head."""
HEAD = "lm_head.weight"
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
NAMED = 5
"""Tensors named in an error before "and N more"."""


def write_weights(
    model: Transformer,
    folder: Path | str,
    *,
    end_of_text: int | None = None,
    quantised: str | None = None,
) -> None:
    """Write `model.safetensors` and `config.json` to the folder, each atomically.

    Weights keep their dtype; those of Conv1D are transposed, a tied head is written once.
    `quantised` names what `quantise` has done to the model. Raises UsageError before writing if
    transformers has no such model.
    """
    folder = Path(folder)
    dtype = str(model.embedding.weight.dtype).removeprefix("torch.")
    document = config_document(model.config, dtype) | {"eos_token_id": end_of_text}
    if quantised is not None:
        document["quantization_config"] = quantization_config(quantised)
    tensors = stored_tensors(model)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(tensors, folder / WHOLE, metadata={"format": "pt"})
    write_atomically(str(folder / CONFIG), json.dumps(document, indent=2).encode() + b"\n")


def stored_tensors(model: Transformer) -> dict[str, Tensor]:
    """The content of a model's file, by name."""
    parameters = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for entry in weight_mappings(model.config):
        weight = parameters[entry.ours].detach()
        rows = slice(*(entry.rows or (None,)))
        tensors |= tensors_of_rows(weight.T if entry.is_transposed else weight, rows, entry.theirs)
    return tensors


@torch.no_grad()
def read_weights(model: Transformer, path: Path | str) -> None:
    """Load all parameters from a folder, a .safetensors file or an index, converted to the dtypes
    of the model.

    All headers are checked before anything is loaded. Raises UsageError naming the file and the
    tensors that are missing, unexpected, of another shape or not floating-point.
    """
    path = Path(path)
    parameters = dict(model.named_parameters())
    if any(parameter.is_meta for parameter in parameters.values()):
        raise UsageError("The model is on the meta device: call to_empty(device=...) first.")
    checkpoint = read_checkpoint(path)
    shapes = {
        tensor.name: tensor.shape
        for tensor in checkpoint.tensors
        if not NO_WEIGHTS.search(tensor.name)
    }
    for part in checkpoint.tensors:
        if part.name in shapes and part.dtype not in FLOATS:
            raise UsageError(
                f"{path}: {part.name}: {part.dtype} is not a trainable floating-point dtype."
            )
    named_entries = _by_checkpoint_name(weight_mappings(model.config), shapes)
    expected = {
        name: tuple(_theirs(parameters[entry.ours], entry).shape)
        for name, entry in named_entries.items()
    }
    tied_head = {HEAD: tuple(model.head_weight.shape)} if model.config.is_tied else {}
    _check(checkpoint.place, expected, shapes, tied_head)
    for name, tensor in _tensors(checkpoint, named_entries):
        entry = named_entries[name]
        _theirs(parameters[entry.ours], entry).copy_(tensor)
    _check_tied_head(checkpoint, model, shapes)


def _theirs(parameter: Tensor, entry: WeightMapping) -> Tensor:
    """The view of our parameter that corresponds to their tensor."""
    part = parameter if entry.rows is None else parameter[slice(*entry.rows)]
    return part.T if entry.is_transposed else part


def _by_checkpoint_name(
    listed: Iterable[WeightMapping], names: Iterable[str]
) -> dict[str, WeightMapping]:
    """Mappings by the names in this checkpoint: OpenAI's GPT-2 on the Hub is the headless model."""
    is_bare = not any(name.startswith(GPT2_BASE) for name in names)
    return {
        entry.theirs.removeprefix(GPT2_BASE) if is_bare else entry.theirs: entry for entry in listed
    }


def _check(
    place: str,
    expected: Mapping[str, tuple[int, ...]],
    actual: Mapping[str, tuple[int, ...]],
    tied_head: Mapping[str, tuple[int, ...]],
) -> None:
    allowed = {**tied_head, **expected}
    wrong = {
        "missing": expected.keys() - actual.keys(),
        "not of this model": actual.keys() - allowed.keys(),
        "of another shape": {
            f"{name} {actual[name]} for {allowed[name]}"
            for name in actual.keys() & allowed.keys()
            if actual[name] != allowed[name]
        },
    }
    if complaints := [_list_text(what, sorted(names)) for what, names in wrong.items() if names]:
        raise UsageError(
            f"{place}: {'; '.join(complaints)}. Is it of another model? Build the model from the "
            "config.json beside it."
        )


def _list_text(what: str, names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{what}: {', '.join(names[:NAMED])}{more}"


def _tensors(checkpoint: Checkpoint, wanted_names: Iterable[str]) -> Iterable[tuple[str, Tensor]]:
    """Yield one tensor at a time, so that memory holds only one model."""
    file_of = {tensor.name: tensor.file for tensor in checkpoint.tensors}
    for file, names in groupby(sorted(wanted_names, key=file_of.__getitem__), file_of.get):
        try:
            with safe_open(file, framework="pt", device="cpu") as tensors:
                for name in names:
                    yield name, tensors.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{file}: cannot be read: {error}") from error


def _check_tied_head(checkpoint: Checkpoint, model: Transformer, names: Iterable[str]) -> None:
    """Raise UsageError if a tied head in the checkpoint differs from the embedding."""
    if not model.config.is_tied or HEAD not in names:
        return
    ((_, head),) = _tensors(checkpoint, [HEAD])
    weight = model.embedding.weight
    if not torch.equal(head.to(weight), weight):
        raise UsageError(
            f"{checkpoint.place}: {HEAD} differs from the embedding, but the config ties them: set "
            "is_tied = false."
        )
