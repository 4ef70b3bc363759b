"""The input of a question: the model, the chips, and how it is to be trained."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torchtally.chips import Chip, Cluster
from torchtally.errors import UsageError
from torchtally.options import documented
from torchtally.plan.activations.setting import AttentionKernel
from torchtally.plan.architecture.model import Model
from torchtally.plan.counted import CountedModel
from torchtally.plan.flops import token_flops
from torchtally.plan.frameworks.configuration import FRAMEWORKS
from torchtally.plan.parameters import parameters
from torchtally.plan.quantity import Quantity, of
from torchtally.plan.questions.plan_options import PlanOptions
from torchtally.plan.stacks.stack import Software
from torchtally.plan.training import six_flops_per_token
from torchtally.timing.roofline.attention import Fused
from torchtally.units import Unit

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Subject:
    """The model in question: by its shape, or by its size alone."""

    parameters: Quantity
    active: Quantity
    """Those that one token meets; all but for a mixture of experts."""
    model: Model | None = None
    """None: only the number of parameters is known."""
    counted: CountedModel | None = None
    """As its own class was counted, where no row knows its shape."""

    @property
    def name(self) -> str:
        if self.model is not None:
            return self.model.name
        return "" if self.counted is None else self.counted.name


def subject(model: Model | int) -> Subject:
    """A model by its shape, or a number of parameters."""
    if isinstance(model, int):
        size = of(model, Unit.PARAMETERS).with_name("parameters")
        return Subject(size, size)
    counted = parameters(model)
    return Subject(counted.total, counted.active if model.is_mixture else counted.total, model)


def counted_subject(counted: CountedModel) -> Subject:
    """A model that was counted in its own class: exact numbers, and no shape."""
    whole = of(counted.parameters, Unit.PARAMETERS).with_name("parameters")
    met = of(counted.active, Unit.PARAMETERS).with_name("active parameters")
    return Subject(whole, met, counted=counted)


@documented
@dataclass(frozen=True, kw_only=True)
class Request(PlanOptions):
    """All that a question may look at: the options, and what they name."""

    subject: Subject | None = None
    """The model of `model`, `parameters` or the sizes; None: not given."""
    cluster: Cluster | None = None
    """The chips of `gpus`, with their memory and peak."""
    is_written: bool = True
    """A step may be written out of a program, where one is for it; else by closed forms alone."""
    stack: Software | None = None
    """The software that runs it, whose facts the fields have; None: not given."""
    chosen: frozenset[str] = frozenset()
    """Facts of the stack that options replace."""
    progress: Callable[[int], None] | None = None
    """Called during a search with the number of layouts tried."""

    @property
    def kernel(self) -> AttentionKernel | None:
        """Attention's kernel. None: PyTorch's own choice."""
        return self.attention[0]

    @property
    def fused(self) -> Fused | None:
        """The library whose fused kernel it is; None: not given."""
        return self.attention[1]

    @property
    def framework(self) -> str:
        """The framework whose configuration is to be written; "" for none."""
        asked = [name for name in FRAMEWORKS if getattr(self, name) is not None]
        return asked[0] if asked else ""

    @property
    def chip(self) -> Chip:
        return self.of_cluster.chip

    # What a question needs. Each raises UsageError where it is not given.

    @property
    def of_cluster(self) -> Cluster:
        return _value_or(
            self.cluster,
            "Missing chips: give --gpus 1024xH100-SXM. `tally gpus` lists the known ones.",
        )

    @property
    def of_subject(self) -> Subject:
        return _value_or(
            self.subject,
            "Missing model: give a name (llama-3-70b), a config.json, a .safetensors file, or "
            "its size: --parameters 70B.",
        )

    @property
    def of_model(self) -> Model:
        return _value_or(
            self.of_subject.model,
            "This needs the model's shape, not only its number of parameters: give a name "
            "(llama-3-70b), a config.json, or --layers, --width, --heads and --vocabulary.",
        )

    @property
    def of_tokens(self) -> Quantity:
        tokens = _value_or(self.tokens, "Missing tokens: give --tokens 15T.")
        return of(tokens, Unit.TOKENS).with_name("tokens")

    @property
    def of_chips(self) -> Quantity:
        return of(self.of_cluster.count, Unit.CHIPS).with_name("chips")

    @property
    def of_deadline(self) -> Quantity:
        deadline = _value_or(self.deadline_s, "Missing deadline: give --deadline 30d (or h, w).")
        return of(deadline, Unit.SECONDS).with_name("deadline")

    @property
    def of_mfu(self) -> Quantity:
        mfu = _value_or(
            self.mfu,
            "Missing MFU: give --mfu 0.4 (usually 0.3 to 0.6 of the dense peak; --search predicts "
            "it for given chips).",
        )
        return of(mfu, Unit.FRACTION).with_name("MFU")


def _value_or(value: T | None, otherwise: str) -> T:
    if value is None:
        raise UsageError(otherwise)
    return value


def peak_flop_per_s(request: Request, chip: Chip) -> Quantity:
    """The chip's dense peak for the recipe's products. Raises UsageError without one."""
    dtype = request.recipe.products
    peak = chip.peak(dtype)
    return Quantity(
        f"{chip.name} {dtype} peak",
        peak.flop_per_s,
        Unit.FLOP_PER_S,
        source=peak.source,
        note="dense, from the data sheet",
    )


USUAL_SEQUENCE = 8192
"""Most tokens are trained on in sequences no longer than this, whatever a model is stretched to
afterwards: Llama 3's 405B by 2.87 T of 15.6 T (arXiv 2407.21783, section 3.4.1)."""


def sequence_of(request: Request) -> tuple[int | None, str]:
    """The sequence length at which attention is counted, and where it comes from.

    By default the model's context length, but no more than is usual in pre-training; None
    where it is unknown.
    """
    if request.sequence is not None:
        return request.sequence, ""
    model = request.of_subject.model
    if model is None or model.context is None:
        return None, ""
    if model.context <= USUAL_SEQUENCE:
        how = f"the context length of {model.name}"
    else:
        how = f"usual in pre-training (context length of {model.name}: {model.context})"
    length = min(model.context, USUAL_SEQUENCE)
    return length, f"Sequences of {length} tokens, {how} (--sequence)."


def flops_per_token(request: Request) -> tuple[Quantity, tuple[str, ...]]:
    """Model FLOPs of a training step for one token, and their assumptions.

    From the model's shape: products of every matrix and of attention. From its size: six for each
    parameter.
    """
    subject = request.of_subject
    length, assumption = sequence_of(request)
    if subject.model is not None and length is not None:
        flops = token_flops(subject.model, length, attention=request.convention)
        counted = f"{request.convention.description.capitalize()} (--convention)."
        return flops.model, (*((assumption,) if assumption else ()), counted)
    if subject.counted is not None and subject.counted.step is not None:
        return _counted_flops(subject.counted)
    return six_flops_per_token(subject.active), (
        *_parameters_alone(subject),
        "6 FLOPs per parameter and token; attention scores excluded.",
    )


def _parameters_alone(subject: Subject) -> tuple[str, ...]:
    if subject.counted is None:
        return ()
    counted = subject.counted
    return (
        f"Parameters as counted in {counted.library}' {counted.name}; it has no closed form. No "
        f"step is counted: {counted.why_not}.",
    )


def _counted_flops(counted: CountedModel) -> tuple[Quantity, tuple[str, ...]]:
    """FLOPs of the class at work, operator by operator. Raises UsageError for what reads no
    text.
    """
    from torchtally.plan.questions.counted import flops_of_token, in_words

    assert counted.step is not None
    if not counted.step.tokens:
        raise UsageError(
            f"{counted.name} is not a text model: its FLOPs are counted per sample "
            f"({counted.step.sample}). Ask without --tokens, or with --gpus of one chip for the "
            "time of a step."
        )
    return flops_of_token(counted.step), tuple(in_words(counted))
