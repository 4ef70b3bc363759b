"""A written-out trace against a run's own."""

from collections.abc import Iterator

from msgspec.structs import replace

from torchtally.trace import Call, TensorSpec, Trace

COMPARED = (
    "step_ends",
    "differentiated",
    "waits",
    "stream_waits",
    "coalesced",
    "emptied",
    "reserved",
    "placeholders",
    "notes",
)
"""Fields of a trace that are compared whole."""


def canonical(call: Call) -> Call:
    """The call without strides of dimensions of one element, which have no meaning."""
    return replace(
        call,
        inputs=tuple(map(_canonical, call.inputs)),
        outputs=tuple(map(_canonical, call.outputs)),
    )


def _canonical(spec: TensorSpec) -> TensorSpec:
    strides = zip(spec.shape, spec.stride, strict=True)
    return replace(spec, stride=tuple(0 if size == 1 else stride for size, stride in strides))


def differences(written: Trace, run: Trace) -> Iterator[str]:
    """What a written-out trace has otherwise than the run; nothing where they are one.

    Operators are compared with all that they were called with, and storages with their places in
    the allocator; the script's lines, which a plan does not have, are not.
    """
    if len(written.ops) != len(run.ops):
        yield f"{len(written.ops)} operators, the run has {len(run.ops)}"
    for mine, other in zip(written.ops, run.ops, strict=False):
        call, its_call = written.calls[mine.call], run.calls[other.call]
        site, its_site = written.sites[mine.site], run.sites[other.site]
        is_same = call == its_call or canonical(call) == canonical(its_call)
        if not is_same or (mine.phase, mine.stream) != (other.phase, other.stream):
            yield f"operator {mine.clock} is {call}, of the run {its_call}"
        elif site.module != its_site.module:
            what = f"{call.name} ({mine.clock})"
            yield f"{what} is in {site.module!r}, of the run in {its_site.module!r}"
        elif (mine.inputs, mine.outputs) != (other.inputs, other.outputs):
            yield (
                f"{call.name} ({mine.clock}) in {site.module!r} reads storages {mine.inputs} and "
                f"writes {mine.outputs}, of the run {other.inputs} and {other.outputs}"
            )
    if len(written.storages) != len(run.storages):
        yield f"{len(written.storages)} storages, the run has {len(run.storages)}"
    for storage, its_storage in zip(written.storages, run.storages, strict=False):
        if storage != its_storage:
            yield f"{storage}, of the run {its_storage}"
    for name in COMPARED:
        if getattr(written, name) != getattr(run, name):
            yield f"{name} are {getattr(written, name)}, of the run {getattr(run, name)}"
    groups, its = ([(g.description, g.ranks) for g in each.groups] for each in (written, run))
    if groups != its:  # their names count all groups that were made
        yield f"groups are {groups}, of the run {its}"
