"""Strided tensors as facts: shapes, strides and offsets on storages, without torch."""

from torchtally.strided.tensor import (
    EvaluatedExpression,
    ExpressionStep,
    StepOrigin,
    StridedTensor,
    storage_name,
)

__all__ = ["EvaluatedExpression", "ExpressionStep", "StepOrigin", "StridedTensor", "storage_name"]
