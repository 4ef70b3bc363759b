"""Lookups of token ids in an embedding: what tells how many tokens a model works on."""

from dataclasses import dataclass

from torchtally.trace.op import Call, TensorSpec

LOOKUP = "aten.embedding"


@dataclass(frozen=True, slots=True)
class Lookup:
    """Lookup by an operator of its own, or within a kernel that a compiler wrote."""

    table: TensorSpec
    ids: TensorSpec
    is_fused: bool

    @property
    def sequences(self) -> int:
        """Sequences in the batch; one where ids have no dimension for it."""
        shape = self.ids.shape
        return shape[0] if len(shape) > 1 else 1

    @property
    def tokens(self) -> int:
        """Tokens of each sequence."""
        return self.ids.shape[-1] if self.ids.shape else 1


def lookup_of(call: Call) -> Lookup | None:
    """The call's lookup in an embedding; None of another call."""
    parts = call.fused.parts if call.fused is not None else ()
    for each in (call, *(inner for part in parts for inner in part.calls)):
        if each.name == LOOKUP and len(each.inputs) == 2:
            return Lookup(*each.inputs, is_fused=each is not call)
    return None
