"""How many numbers a model has, by what they are for, and how many of them a token meets."""

from dataclasses import dataclass

from torchtally.plan.architecture.model import Model
from torchtally.plan.architecture.weights import Group, Weight, weights_of
from torchtally.plan.closed_form import Count, ParameterCount, closed_form
from torchtally.plan.quantity import Quantity, derive, total
from torchtally.units import Unit

PARAMETERS = Unit.PARAMETERS
NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, equation 2"


@dataclass(frozen=True, slots=True)
class Parameters:
    """A model's trained parameters."""

    groups: tuple[Quantity, ...]
    """One for each `Group` that the model has. They sum to `total`."""
    total: Quantity
    inner: Quantity
    """Without embeddings that are only looked up: what scaling laws call non-embedding, but with
    a head of its own (nanoGPT counts so, by leaving out positions)."""
    active: Quantity
    """Those that one token meets: of a mixture, the experts chosen for it and all the rest."""

    def of(self, group: Group) -> int:
        """Elements of one group; 0 where the model has none."""
        return next(
            (int(quantity.value) for quantity in self.groups if quantity.name == str(group)), 0
        )


def parameters(model: Model) -> Parameters:
    """All of a model's parameters, by group, from its list of weights."""
    weights = weights_of(model)
    groups = tuple(
        quantity
        for quantity in (group_parameters(group, weights) for group in Group)
        if quantity.value
    )
    whole = total("parameters", PARAMETERS, {_word(group.name): group for group in groups})
    inner, active = (
        _without(whole, _table_elements(weights)),
        _active(whole, _idle_elements(weights)),
    )
    return Parameters(groups, whole, inner, active)


@closed_form("parameters without embeddings", PARAMETERS)
def _without(parameters: ParameterCount, looked_up: ParameterCount) -> str:
    return "parameters - looked_up"


@closed_form(
    "active parameters", PARAMETERS, note="parameters that one token uses, embeddings included"
)
def _active(parameters: ParameterCount, idle_experts: ParameterCount) -> str:
    return "parameters - idle_experts"


def group_parameters(group: Group, weights: tuple[Weight, ...]) -> Quantity:
    """The parameters of one group: every shape by how many there are of it."""
    members = [weight for weight in weights if weight.group is group]
    formula = " + ".join(
        f"{weight.count} * {' * '.join(map(str, weight.shape))}" for weight in members
    )
    names = ", ".join(dict.fromkeys(weight.name for weight in members))
    return derive(str(group), PARAMETERS, formula or "0", "", names)


@closed_form("parameters", PARAMETERS, NARAYANAN)
def decoder_parameters(layers: Count, width: Count, vocabulary: Count, sequence: Count) -> str:
    """A GPT with tied embeddings, feed-forward of four widths, biases and learned positions."""
    return (
        "12 * layers * width**2 * (1 + 13 / (12 * width)"
        " + (vocabulary + sequence) / (12 * layers * width))"
    )


def _table_elements(weights: tuple[Weight, ...]) -> int:
    return sum(
        weight.elements for weight in weights if weight.group is Group.EMBEDDING and not weight.uses
    )


def _idle_elements(weights: tuple[Weight, ...]) -> int:
    """Elements of experts that are not chosen for a token: the share that `uses` leaves."""
    experts = [weight for weight in weights if weight.group is Group.EXPERTS]
    share = {expert.count: expert.uses for expert in experts if expert.uses}
    return round(
        sum(expert.elements * (1 - (expert.uses or share[expert.count])) for expert in experts)
    )


def _word(name: str) -> str:
    return name.replace("-", "_")
