"""The form of a record: immutable, compact in memory, an array in the file.

The numbers' types carry their bounds, which msgspec checks in every file that is read.
"""

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
"""Of bytes, of operators: never negative."""
Tick = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
"""A moment on the trace's clock. Stays exact in any reader, JavaScript's numbers included."""
Index = Annotated[int, msgspec.Meta(ge=0)]
"""The number of a row in a table of the trace; `checks.py` compares it with the table's length."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A record of the trace, packed without the names of its fields.

    The garbage collector does not track records: they refer to nothing that could refer back.
    """
