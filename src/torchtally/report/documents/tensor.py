"""Tensors of an expression."""

from typing import TYPE_CHECKING, Annotated

from torchtally.report.keys import Bytes, Count, Document, DocumentPart, Mixed, filled, finite, key

if TYPE_CHECKING:
    from torchtally.trace.strided import EvaluatedExpression, StridedTensor


class TensorPart(DocumentPart, frozen=True):
    dtype: str
    offset: Annotated[Count, key("Elements from the storage's beginning")]
    is_contiguous: Annotated[bool, key("Whether elements lie in order of index; in tables yes, no")]
    elements: Count
    bytes: Bytes
    storage_bytes: Annotated[Bytes, key("Of the storage that a tensor lies in")]
    shape: Annotated[list[int], key("Of a tensor; in tables as 4x512")]
    strides: Annotated[list[int], key("Elements between neighbours, by dimension; in tables 512x1")]
    contiguous_strides: Annotated[list[int], key("What the strides would be")]
    storage: Annotated[str, key("Letter of a storage")]
    storage_elements_used: Annotated[Count | None, key("Elements of its storage that a tensor has")]
    formula: str


class OperationPart(TensorPart, frozen=True):
    code: Annotated[str, key("A step of an expression")]
    expression: str
    origin: Annotated[str, key("How a tensor came to be: new, copy, view, itself, in place")]


class TensorDocument(Document, tag="tensor/1", frozen=True):
    """Expression of tensors, step by step: `tally tensor`."""

    expression: Annotated[str, key("In Python")]
    places: Annotated[list[int] | None, key("Of a tensor's elements in their storage, in order")]
    shares_storage_with: Annotated[list[str], key("Expressions whose tensors lie in its storage")]
    storage_values: Annotated[list[Mixed | bool] | None, key("Numbers in a storage")]
    result: Annotated[TensorPart, key("Of an expression")]
    operations: Annotated[list[OperationPart], key("Of an expression, one after the other")]


def tensor_document(evaluation: "EvaluatedExpression") -> TensorDocument:
    """The result and every step; `places` are those of the result's elements, in their order."""
    from torchtally.trace.strided import storage_name
    from torchtally.views.strided import picture

    drawn = picture(evaluation)
    return TensorDocument(
        expression=evaluation.expression,
        result=_tensor_part(evaluation.tensor),
        places=list(drawn.places) if drawn else None,
        storage_values=[finite(value) for value in drawn.values] if drawn else None,
        shares_storage_with=[step.expression for step in evaluation.sharing()],
        operations=[
            filled(OperationPart, step, step.tensor, storage=storage_name(step.tensor.storage))
            for step in evaluation.steps
        ],
    )


def _tensor_part(tensor: "StridedTensor") -> TensorPart:
    from torchtally.trace.strided import storage_name

    return filled(TensorPart, tensor, storage=storage_name(tensor.storage))
