"""Evaluating an expression of tensors step by step, without the memory that it would take."""

from torchtally.expressions.evaluate import evaluate
