"""Parameters sorted by how they are to be treated: which decay, which Muon makes orthogonal."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchtally.errors import UsageError
from torchtally.train.optimizers.config import DecayedOn
from torchtally.train.optimizers.foreach import ParameterGroup

ParameterSource = (
    torch.nn.Module | Iterable[torch.nn.Parameter] | Iterable[tuple[str, torch.nn.Parameter]]
)
IsHidden = Callable[[str, torch.nn.Parameter], bool]

EMBEDDING_NAMES = ("embed", "embedding", "embeddings", "embed_tokens", "wte", "wpe")
HEAD_NAMES = ("lm_head", "head", "output", "embed_out", "unembed", "unembedding", "final")
"""What models call the weights on either side of their layers, as one part of a dotted name."""


@dataclass(frozen=True, slots=True)
class TrainedParameter:
    """One parameter to be trained, and what is known of its place in the model."""

    name: str | None
    parameter: torch.nn.Parameter
    is_embedding: bool
    is_hidden_matrix: bool


def trained_parameters(
    source: ParameterSource, is_hidden: IsHidden | None = None
) -> list[TrainedParameter]:
    """What is to be trained: each parameter that requires a gradient, once.

    A matrix of two dimensions is hidden unless it is an embedding or a head, which is told by the
    `nn.Embedding` that holds it and by its name; `is_hidden` decides instead where it is given.
    Without names, every matrix is hidden. Raises UsageError where there is nothing to train.
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
            "There is nothing to train: no parameter requires a gradient. Give the model before it "
            "is frozen, or model.parameters() that was not used up before."
        )
    return list(trained.values())


def parameter_groups(
    source: ParameterSource, *, weight_decay: float, decayed_on: DecayedOn
) -> list[ParameterGroup]:
    """At most two groups: the parameters that decay, and the others with a weight decay of 0.

    Raises UsageError where embeddings are to be told apart and the parameters have no names.
    """
    return decay_groups(trained_parameters(source), weight_decay, decayed_on)


def decay_groups(
    trained: Sequence[TrainedParameter], weight_decay: float, decayed_on: DecayedOn, **others: Any
) -> list[ParameterGroup]:
    """As `parameter_groups`; `others` are in both groups."""
    if decayed_on == "matrices without embeddings" and any(
        parameter.name is None for parameter in trained
    ):
        raise UsageError(
            "decayed_on 'matrices without embeddings' needs to know the embeddings. Give the "
            "model, or model.named_parameters(), for model.parameters()."
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
    """With names where there are names: torch then keeps them in its state dict."""
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
