"""What happened, as facts: no formula, no torch. See ``trace.py`` for the whole."""

from torchtally.trace.op import Call, Frame, Literal, Op, Phase, Site, TensorSpec
from torchtally.trace.storage import Role, Storage
from torchtally.trace.trace import (
    CacheEmptied,
    Ending,
    Note,
    Placeholder,
    Refusal,
    Reserved,
    Trace,
)

__all__ = [
    "CacheEmptied",
    "Call",
    "Ending",
    "Frame",
    "Literal",
    "Note",
    "Op",
    "Phase",
    "Placeholder",
    "Refusal",
    "Reserved",
    "Role",
    "Site",
    "Storage",
    "TensorSpec",
    "Trace",
]
