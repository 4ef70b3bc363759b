"""The numbers of tensors, and what formats would lose of them."""

from typing import TYPE_CHECKING, Annotated

from torchtally.report.keys import Count, Document, DocumentPart, Fraction, Number, filled, key

if TYPE_CHECKING:
    from torchtally.number_formats.losses import FormatLoss, TensorStatistics
    from torchtally.views.tensor_numbers import RealStep, TensorNumbers


class FormatLossPart(DocumentPart, frozen=True):
    format: str
    scale_of: Annotated[str, key("What shares a scale: none, a tensor, a block")]
    underflow_share: Annotated[Fraction, key("Of the numbers, becomes zero")]
    overflow_share: Annotated[Fraction, key("Of the numbers, becomes inf, NaN or the largest")]
    subnormal_share: Annotated[Fraction, key("Of the numbers, is held with fewer digits")]
    rounded_share: Annotated[Fraction, key("Of the numbers, becomes another number")]


class TensorNumbersPart(DocumentPart, frozen=True):
    tensor_name: Annotated[str, key("Of a tensor in a file, or of a parameter")]
    dtype: str
    elements: Count
    zeros: Annotated[Count, key("Elements that are zero")]
    nonfinite: Annotated[Count, key("Elements that are inf or NaN")]
    largest_magnitude: Annotated[Number, key("Of a tensor's finite numbers")]
    smallest_magnitude: Annotated[Number, key("Of a tensor's numbers that are not zero")]
    standard_deviation: Annotated[Number, key("Of a tensor's finite numbers, zeros included")]
    exponents: Annotated[dict[str, Count], key("Numbers from 2**exponent to twice that")]
    losses: Annotated[list[FormatLossPart], key("Of a tensor's numbers, by format")]


class TensorNumbersDocument(Document, tag="tensor_numbers/1", frozen=True):
    """Numbers of tensors, and what formats would lose of them: `tally dtypes FILE`."""

    source: str
    total_numbers: Annotated[TensorNumbersPart, key("All tensors together")]
    tensor_numbers: Annotated[list[TensorNumbersPart], key("Tensors, the largest loss first")]
    left_out_tensors: Annotated[dict[str, Count], key("Tensors without such numbers, by dtype")]


def tensor_numbers_document(numbers: "TensorNumbers") -> TensorNumbersDocument:
    """All tensors, with every format."""
    return TensorNumbersDocument(
        source=numbers.source,
        total_numbers=_part(numbers.total),
        tensor_numbers=[_part(tensor) for tensor in numbers.worst()],
        left_out_tensors=numbers.left_out,
    )


class RealStepDocument(Document, tag="real-step/1", frozen=True):
    """A script's first step with real values on the CPU: `tally run --real-values`."""

    script: str
    ended_early: Annotated[str, key("How a script ended before its backward pass; else empty")]
    shrunk: Annotated[list[str], key("Batches that were cut where they entered a model")]
    layer_outputs: Annotated[list[TensorNumbersPart], key("Of innermost modules, as they ran")]
    gradients: Annotated[list[TensorNumbersPart], key("Of parameters, after the backward pass")]


def real_step_document(step: "RealStep") -> RealStepDocument:
    """All tensors, in their order, with every format."""
    return RealStepDocument(
        script=step.script,
        ended_early=step.ending,
        shrunk=list(step.shrunk),
        layer_outputs=[_part(tensor) for tensor in step.outputs.tensors],
        gradients=[_part(tensor) for tensor in step.gradients.tensors],
    )


def _part(tensor: "TensorStatistics") -> TensorNumbersPart:
    return filled(
        TensorNumbersPart,
        tensor,
        tensor_name=tensor.name,
        largest_magnitude=tensor.largest,
        smallest_magnitude=tensor.smallest,
        exponents={str(exponent): count for exponent, count in tensor.exponents.items()},
        losses=[_loss_part(tensor, loss) for loss in tensor.losses],
    )


def _loss_part(tensor: "TensorStatistics", loss: "FormatLoss") -> FormatLossPart:
    from torchtally.views.tensor_numbers import shares

    return FormatLossPart(loss.format, str(loss.scale), *shares(tensor, loss))
