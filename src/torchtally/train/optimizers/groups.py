"""Parameter groups: which parameters decay, and which Muon orthogonalises."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchtally.errors import UsageError
from torchtally.train.optimizers.config import DecayedOn
from torchtally.train.optimizers.own import ParameterGroup

ParameterSource = torch.nn.Module | Iterable[tuple[str, torch.nn.Parameter]]

EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)
EMBEDDING_NAMES = {"embed", "embedding", "embeddings", "embed_tokens", "wte", "wpe"}
HEAD_NAMES = {"lm_head", "head", "output", "embed_out", "unembed", "unembedding", "final"}
"""Usual names of embeddings and heads, as one part of a dotted name."""


@dataclass(frozen=True, slots=True)
class TrainedParameter:
    """A trainable parameter and its role in the model."""

    name: str
    parameter: torch.nn.Parameter
    is_embedding: bool
    is_hidden_matrix: bool


def trained_parameters(source: ParameterSource) -> list[TrainedParameter]:
    """Each parameter of a model, or of named ones, that requires a gradient, once.

    A matrix is hidden unless it is an embedding or a head, recognised by `nn.Embedding` and by its
    name. Raises UsageError if nothing is trainable.
    """
    embeddings: set[int] = set()
    if isinstance(source, torch.nn.Module):
        embeddings = {id(part.weight) for part in source.modules() if isinstance(part, EMBEDDINGS)}
        source = source.named_parameters()
    trained: dict[int, TrainedParameter] = {}
    for name, parameter in source:
        if parameter.requires_grad and id(parameter) not in trained:
            parts = {*name.split(".")}
            is_embedding = id(parameter) in embeddings or bool(parts & EMBEDDING_NAMES)
            is_hidden = parameter.ndim == 2 and not is_embedding and not parts & HEAD_NAMES
            trained[id(parameter)] = TrainedParameter(name, parameter, is_embedding, is_hidden)
    if not trained:
        raise UsageError(
            "Nothing to train: no parameter requires a gradient. Is the model frozen, or was the "
            "iterator model.named_parameters() already consumed?"
        )
    return list(trained.values())


def decay_groups(
    trained: Sequence[TrainedParameter], weight_decay: float, decayed_on: DecayedOn, **others: Any
) -> list[ParameterGroup]:
    """Groups, at most two: parameters with weight decay, and the others with a weight decay of 0.

    Both have the additional keys.
    """
    groups = []
    for is_decayed, decay in ((True, weight_decay), (False, 0.0)):
        members = [each for each in trained if _decays(each, decayed_on) is is_decayed]
        named = [(each.name, each.parameter) for each in members]
        if named:
            groups.append({"params": named, "weight_decay": decay, **others})
    return groups


def _decays(trained: TrainedParameter, decayed_on: DecayedOn) -> bool:
    if decayed_on == "all":
        return True
    is_left_out = decayed_on == "matrices without embeddings" and trained.is_embedding
    return trained.parameter.ndim >= 2 and not is_left_out
