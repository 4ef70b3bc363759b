"""What happened, as facts: no formula, no torch. See ``trace.py`` for the whole."""

from torchtally.trace.effect import Effect, EffectKind, FileId, StubFile
from torchtally.trace.loading import BatchLoading
from torchtally.trace.measured import LostTime, Measured, MeasuredKernel
from torchtally.trace.op import (
    FORWARD_PHASES,
    Call,
    Frame,
    FusedKernel,
    Literal,
    Op,
    Operations,
    Part,
    Phase,
    Scalar,
    Site,
    TensorSpec,
    Tile,
)
from torchtally.trace.ranks import (
    HOST,
    Coalesced,
    ProcessGroup,
    StreamWait,
    World,
    communicator_stream,
)
from torchtally.trace.script_work import ScriptWork
from torchtally.trace.storage import Role, Storage
from torchtally.trace.trace import (
    CacheEmptied,
    Ending,
    HostState,
    Note,
    Placeholder,
    Refusal,
    Reserved,
    Trace,
    Use,
)
