"""Parameter groups: which parameters decay, and which Muon orthogonalises."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchtally.errors import UsageError
from torchtally.train.optimizers.config import DecayedOn
from torchtally.train.optimizers.own import ParameterGroup

ParameterSource = (
    torch.nn.Module | Iterable[torch.nn.Parameter] | Iterable[tuple[str, torch.nn.Parameter]]
)
IsHidden = Callable[[str, torch.nn.Parameter], bool]

EMBEDDING_NAMES = ("embed", "embedding", "embeddings", "embed_tokens", "wte", "wpe")
HEAD_NAMES = ("lm_head", "head", "output", "embed_out", "unembed", "unembedding", "final")
"""Usual names of embeddings and heads, as one part of a dotted name."""


@dataclass(frozen=True, slots=True)
class TrainedParameter:
    """A trainable parameter and its role in the model."""

    name: str | None
    parameter: torch.nn.Parameter
    is_embedding: bool
    is_hidden_matrix: bool


def trained_parameters(
    source: ParameterSource, is_hidden: IsHidden | None = None
) -> list[TrainedParameter]:
    """Each parameter that requires a gradient, once.

    A matrix is hidden unless it is an embedding or a head, recognised by `nn.Embedding` and by its
    name; `is_hidden` decides instead if given. Without names every matrix is hidden. Raises
    UsageError if nothing is trainable.
    """
    embeddings = _embeddings(source)
    trained: dict[int, TrainedParameter] = {}
    for name, parameter in _named(source):
        if parameter.requires_grad and id(parameter) not in trained:
            parts = (name or "").split(".")
            is_embedding = id(parameter) in embeddings or _is_among(EMBEDDING_NAMES, parts)
            is_inside = not is_embedding and not _is_among(HEAD_NAMES, parts)
            if is_hidden is not None:
                is_inside = is_hidden(name or "", parameter)
            trained[id(parameter)] = TrainedParameter(
                name, parameter, is_embedding, is_inside and parameter.ndim == 2
            )
    if not trained:
        raise UsageError(
            "Nothing to train: no parameter requires a gradient. Is the model frozen, or was the "
            "iterator model.parameters() already consumed?"
        )
    return list(trained.values())


def decay_groups(
    trained: Sequence[TrainedParameter], weight_decay: float, decayed_on: DecayedOn, **others: Any
) -> list[ParameterGroup]:
    """At most two groups: parameters with weight decay, and the others with a weight decay of 0.

    Both have the additional keys. Raises UsageError if embeddings must be recognised but the
    parameters have no names.
    """
    if decayed_on == "matrices without embeddings" and any(
        parameter.name is None for parameter in trained
    ):
        raise UsageError(
            "decayed_on 'matrices without embeddings' needs the names of parameters. Pass the "
            "model or model.named_parameters() instead of model.parameters()."
        )
    decayed = [parameter for parameter in trained if _decays(parameter, decayed_on)]
    others_kept = [parameter for parameter in trained if not _decays(parameter, decayed_on)]
    return [
        {"params": _with_names(members), "weight_decay": decay, **others}
        for members, decay in ((decayed, weight_decay), (others_kept, 0.0))
        if members
    ]


def _decays(trained: TrainedParameter, decayed_on: DecayedOn) -> bool:
    if decayed_on == "all":
        return True
    is_left_out = decayed_on == "matrices without embeddings" and trained.is_embedding
    return trained.parameter.ndim >= 2 and not is_left_out


def _with_names(members: Sequence[TrainedParameter]) -> list[Any]:
    """Parameters, with names if known: torch then keeps them in its state dict."""
    return [
        parameter.parameter if parameter.name is None else (parameter.name, parameter.parameter)
        for parameter in members
    ]


def _named(source: ParameterSource) -> Iterable[tuple[str | None, torch.nn.Parameter]]:
    if isinstance(source, torch.nn.Module):
        yield from source.named_parameters()
        return
    for parameter in source:
        if isinstance(parameter, tuple):
            yield parameter
        else:
            yield None, parameter


def _embeddings(source: ParameterSource) -> set[int]:
    if not isinstance(source, torch.nn.Module):
        return set()
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return {id(module.weight) for module in source.modules() if isinstance(module, kinds)}


def _is_among(names: Sequence[str], parts: Sequence[str]) -> bool:
    return any(part in names for part in parts)
