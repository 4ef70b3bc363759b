"""Events of all threads as one profile: what lies in what, and what launched what."""

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from torchtally.profiles.nesting import HostEvent, Nested, PythonStacks, nest
from torchtally.profiles.profile import (
    NOWHERE,
    Annotation,
    Collective,
    DeviceActivity,
    HostOperator,
    MemoryChange,
    RecordedWait,
)

WAITS = ("Synchronize", "EventQuery")
GRAPH_LAUNCHES = ("GraphLaunch",)


class NameNumbers:
    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    @property
    def texts(self) -> list[str]:
        return list(self.numbers)


class Activity(NamedTuple):
    """A kernel, copy or memset as its event says it; numbers that it lacks are -1."""

    name: int
    kind: str
    start_us: float
    duration_us: float
    device: int
    stream: int
    correlation: int
    external_id: int
    bytes: int
    collective: Collective | None


class DeviceLaunch(NamedTuple):
    """A call of CUDA's that starts something on the device."""

    operator: int
    at_us: float
    is_of_graph: bool
    stack: int
    annotation: int


NO_LAUNCH = DeviceLaunch(NOWHERE, math.nan, False, NOWHERE, NOWHERE)


class Thread:
    """What happened on one thread, as columns. `payload` depends on the kind."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.kinds = array("b")
        self.starts_us = array("d")
        self.ends_us = array("d")
        self.names = array("q")
        self.payloads = array("q")

    def add(self, kind: int, start_us: float, duration_us: float, name: int, payload: int) -> None:
        self.kinds.append(kind)
        self.starts_us.append(start_us)
        self.ends_us.append(start_us + duration_us)
        self.names.append(name)
        self.payloads.append(payload)

    def places(self, stacks: PythonStacks) -> Iterator[Nested]:
        return nest(
            np.frombuffer(self.kinds, dtype=np.int8),
            np.frombuffer(self.starts_us),
            np.frombuffer(self.ends_us),
            np.frombuffer(self.names, dtype=np.int64),
            stacks,
        )


OPERATOR_COLUMNS = 4
"""(arguments, sequence, forward thread, external id) of an operator, from its payload on."""
MEMORY_COLUMNS = 5
"""(address, bytes, allocated, reserved, device) of a block, from its payload on."""


class Assembly:
    """Rows of a profile, made of the columns of its threads."""

    def __init__(
        self,
        names: Sequence[str],
        operators: "array[int]",
        calls: "array[int]",
        memory: "array[int]",
    ) -> None:
        self.names = names
        self.stacks = PythonStacks()
        self.operators: list[HostOperator] = []
        self.annotations: list[Annotation] = []
        self.memory: list[MemoryChange] = []
        self.waits: list[RecordedWait] = []
        self.launches: dict[int, DeviceLaunch] = {}
        """By correlation."""
        self.by_external_id: dict[int, int] = {}
        """Operators, by number."""
        self._operator_columns, self._call_columns, self._memory_columns = operators, calls, memory

    def add(self, thread: Thread) -> None:
        operator_of: dict[int, int] = {}
        annotation_of: dict[int, int] = {}
        for place in thread.places(self.stacks):
            event = place.event
            kind = thread.kinds[event]
            operator = operator_of.get(place.operator, NOWHERE)
            annotation = annotation_of.get(place.annotation, NOWHERE)
            if kind == HostEvent.OPERATOR:
                operator_of[event] = len(self.operators)
                self._add_operator(thread, place, operator, annotation)
            elif kind == HostEvent.CALL:
                self._add_call(thread, place, operator, annotation)
            elif kind == HostEvent.ANNOTATION:
                annotation_of[event] = len(self.annotations)
                self._add_annotation(thread, event, annotation)
            else:
                self._add_memory(thread, event, operator)

    def _name(self, thread: Thread, event: int) -> str:
        return self.names[thread.names[event]] if self.names else ""

    def _add_operator(self, thread: Thread, place: Nested, parent: int, annotation: int) -> None:
        event = place.event
        payload = thread.payloads[event]
        arguments, sequence, forward_thread, external_id = self._operator_columns[
            payload : payload + OPERATOR_COLUMNS
        ]
        if external_id >= 0:
            self.by_external_id[external_id] = len(self.operators)
        self.operators.append(
            HostOperator(
                self._name(thread, event),
                arguments,
                thread.number,
                thread.starts_us[event],
                thread.ends_us[event],
                parent,
                place.stack,
                sequence,
                forward_thread,
                annotation,
            )
        )

    def _add_call(self, thread: Thread, place: Nested, operator: int, annotation: int) -> None:
        event = place.event
        name, start_us = self._name(thread, event), thread.starts_us[event]
        correlation = self._call_columns[thread.payloads[event]]
        if correlation >= 0:
            is_graph = name.endswith(GRAPH_LAUNCHES)
            self.launches.setdefault(
                correlation, DeviceLaunch(operator, start_us, is_graph, place.stack, annotation)
            )
        if any(wait in name for wait in WAITS):
            self.waits.append(RecordedWait(name, start_us, thread.ends_us[event], operator))

    def _add_annotation(self, thread: Thread, event: int, parent: int) -> None:
        start_us, end_us = thread.starts_us[event], thread.ends_us[event]
        name = self._name(thread, event)
        self.annotations.append(Annotation(name, thread.number, start_us, end_us, parent))

    def _add_memory(self, thread: Thread, event: int, operator: int) -> None:
        payload = thread.payloads[event]
        columns = self._memory_columns[payload : payload + MEMORY_COLUMNS]
        start_us = thread.starts_us[event]
        self.memory.append(MemoryChange._make((start_us, thread.number, *columns, operator)))

    def link(
        self, activities: Iterable[Activity], *, by_external_id: bool
    ) -> Iterator[DeviceActivity]:
        """Each with the operator that launched it. External ids serve those whose launch was not
        recorded, where they are the operators'.
        """
        operator_of = self.by_external_id if by_external_id else {}
        for row in activities:
            launch = self.launches.get(row.correlation, NO_LAUNCH)
            operator = launch.operator
            if operator == NOWHERE:
                operator = operator_of.get(row.external_id, NOWHERE)
            yield DeviceActivity(
                self.names[row.name],
                row.kind,
                row.start_us,
                row.duration_us,
                row.device,
                row.stream,
                operator,
                launch.at_us,
                launch.is_of_graph,
                row.bytes,
                launch.stack,
                row.collective,
                launch.annotation,
            )
