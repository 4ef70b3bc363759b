"""Measures the memory of the run in this process by `torch.cuda`'s own counters and history.

It knows nothing of whether the GPU is there: a simulated one answers the same questions.
"""

import torch
from torch import Tensor

from torchtally import torch_private as private
from torchtally.runs.measure.history import STEP_MARK, Played, play
from torchtally.runs.measure.lines import lines
from torchtally.runs.protocol import Device
from torchtally.trace import Role
from torchtally.trace.measurement import HELD_OF_ROLE, Held, MeasuredStep, Measurement
from torchtally.tracer.recorder import Recorder
from torchtally.tracer.stopper import ScriptOutcome
from torchtally.tracer.storage_records import StorageRecords
from torchtally.tracer.tensor_roles import TensorRoles


class AddressRoles(TensorRoles):
    """Roles of what optimizers hold by address, since the last step."""

    def __init__(self, storages: StorageRecords) -> None:
        super().__init__(storages)
        self.by_address: dict[int, Role] = {}

    def mark(self, tensor: Tensor, role: Role, name: str = "") -> None:
        if not tensor.is_cuda:
            return
        try:
            address = tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # sparse: it has several storages or none
            return
        self.by_address.setdefault(address, role)


class Roles(Recorder):
    """A recorder of nothing but what optimizers hold."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors = self.addresses = AddressRoles(self.storages)


class Meter:
    """Told of every completed step; `measurement()` is everything so far.

    The allocator's history is recorded from the moment on that the script first uses CUDA, so that
    it may still choose its device. Torch's own peaks are only read: they stay the script's to
    reset.

    Known limits: a script that records the history itself may end ours, and one that sets the
    metadata of its events hides where steps ended in it; torch's own counts stay.
    """

    def __init__(self) -> None:
        self.roles = Roles()
        self._held: list[dict[int, Role]] = []
        """Roles by address, at the end of each step."""
        self._at_end: list[tuple[int, int]] = []
        """(allocated, reserved) bytes at the end of each step."""
        self._peaks = (0, 0)

    def start(self) -> None:
        """Record the history, at once or as soon as CUDA is used."""
        private.call_once_initialized(_record)

    def step_completed(self, number: int) -> None:
        self._held.append(self.roles.addresses.by_address)
        self.roles.addresses.by_address = {}
        self._at_end.append(self._read())
        if torch.cuda.is_initialized():
            private.set_memory_metadata(f"{STEP_MARK}{number}")

    def _read(self) -> tuple[int, int]:
        """Bytes allocated and reserved now; takes note of torch's peaks."""
        if not torch.cuda.is_initialized():
            return 0, 0
        peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        self._peaks = max(self._peaks[0], peaks[0]), max(self._peaks[1], peaks[1])
        return torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def measurement(self, outcome: ScriptOutcome) -> Measurement:
        """Measurement of the device that is current now. Ends the recording."""
        self._read()
        played = self._play()
        peak = max(self._peaks[0], played.peak_allocated_bytes)
        bytes_of = dict.fromkeys(Held, 0)
        for block, role in played.at_peak:
            if role is not None and role in HELD_OF_ROLE:
                bytes_of[HELD_OF_ROLE[role]] += block.bytes
        bytes_of[Held.REST] = peak - sum(bytes_of.values())
        gpu = device()
        return Measurement(
            device=gpu.name,
            total_memory_bytes=gpu.total_memory_bytes,
            torch=str(torch.__version__),
            ending=outcome.ending.kind,
            message=outcome.ending.message,
            exit_code=outcome.exit_code,
            peak_allocated_bytes=peak,
            peak_reserved_bytes=max(self._peaks[1], played.peak_reserved_bytes),
            peak_step=played.peak_step + 1,
            steps=tuple(
                MeasuredStep(*peaks, *at_end)
                for peaks, at_end in zip(played.step_peaks, self._at_end, strict=False)
            ),
            held={str(name): size for name, size in bytes_of.items()},
            lines=lines(block for block, _ in played.at_peak),
        )

    def _play(self) -> Played:
        if not torch.cuda.is_initialized():
            return play([], self._held, self.roles.addresses.by_address)
        entries = private.memory_snapshot()["device_traces"][torch.cuda.current_device()]
        private.record_memory_history(enabled=None)
        return play(entries, self._held, self.roles.addresses.by_address)


def _record() -> None:
    private.record_memory_history(enabled="all", context="alloc", stacks="python")


def device() -> Device:
    """The current GPU; one without a name where there is none."""
    if not torch.cuda.is_available():
        return Device("", 0)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Device(str(properties.name), int(properties.total_memory))
