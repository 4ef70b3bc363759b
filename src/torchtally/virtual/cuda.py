"""`torch.cuda`, `torch.accelerator` and their like, answered for the simulated chip."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import scatter_gather

from torchtally import torch_private as private
from torchtally.chips import Chip
from torchtally.errors import UnsupportedError
from torchtally.torch_private import releases
from torchtally.virtual import graphs, legacy_types, rocm
from torchtally.virtual.cuda_calls import CudaCalls, refusal
from torchtally.virtual.cuda_memory import CudaMemory
from torchtally.virtual.dispatch import VirtualDispatch
from torchtally.virtual.profiling import Profiling, do_nothing
from torchtally.virtual.shown_devices import as_device, device_index
from torchtally.virtual.shown_properties import ShownProperties
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.streams import CURRENT, DEFAULT_STREAM_ID, Event, Stream, StreamContext
from torchtally.virtual.values import RandomState


class CudaModule:
    """Answers of the functions of `torch.cuda` during a session."""

    def __init__(self, mode: VirtualDispatch, chip: Chip) -> None:
        self.mode = mode
        self.chip = chip
        self.memory = CudaMemory(mode, chip, self.index)
        CURRENT.stream = Stream(stream_id=DEFAULT_STREAM_ID)

    def index(self, device: Any = None) -> int:
        """The number of a GPU named in any of torch's ways; the current one for None."""
        chosen = as_device(device)
        if chosen is not None and chosen.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {chosen}")
        index = chosen.index if chosen is not None else None
        index = self.mode.current_device if index is None else index
        if not 0 <= index < len(self.mode.gpus):
            raise RuntimeError(
                "CUDA error: invalid device ordinal\n"
                f"Device {index} was requested; this run simulates {len(self.mode.gpus)} GPU(s)."
            )
        return index

    # Devices.

    def device_count(self) -> int:
        self.mode.is_counted = True
        return len(self.mode.gpus)

    def set_device(self, device: Any) -> None:
        if not is_no_device(device):
            self.mode.current_device = self.index(device)

    def device_context(self) -> type:
        module = self

        class Device:
            """Context `with torch.cuda.device(1):`."""

            def __init__(self, device: Any) -> None:
                place = device.get_device() if isinstance(device, Tensor) else device
                self.idx = -1 if is_no_device(place) else module.index(place)

            def __enter__(self) -> None:
                self.prev_idx = module.mode.current_device
                if self.idx >= 0:
                    module.mode.current_device = self.idx

            def __exit__(self, *exc: object) -> None:
                module.mode.current_device = self.prev_idx

        return Device

    def properties(self, device: Any = None) -> ShownProperties:
        """Properties as by `torch.cuda.get_device_properties`, without figures that are not
        published.
        """
        self.index(device)
        if self.chip.gcn_architecture:
            return rocm.properties(self.chip)
        facts = self.chip.properties
        row = self.chip.sm
        properties = ShownProperties(
            name=self.chip.device_name,
            major=facts.major,
            minor=facts.minor,
            total_memory=facts.total_memory,
            warp_size=32,
            max_threads_per_multi_processor=row.threads,
            max_threads_per_block=1024,
            shared_memory_per_block=48 * 1024,
            shared_memory_per_block_optin=row.shared_kib * 1024,
            shared_memory_per_multiprocessor=(row.shared_kib + row.reserved_kib) * 1024,
            regs_per_multiprocessor=65536,
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName=self.chip.architecture,
        )
        if facts.multi_processor_count is not None:
            properties.multi_processor_count = facts.multi_processor_count
        if facts.L2_cache_size is not None:
            properties.L2_cache_size = facts.L2_cache_size
        return properties

    def name(self, device: Any = None) -> str:
        self.index(device)
        return self.chip.device_name

    def capability(self, device: Any = None) -> tuple[int, int]:
        properties = self.properties(device)
        return properties.major, properties.minor

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Every CPU can; for a GPU older than Ampere, CUDA emulates it."""
        return not self.chip.is_cuda or including_emulation or self.chip.sm.has_bfloat16

    def architectures(self) -> list[str]:
        """None on the host: libraries look before they ask for a capability."""
        if self.chip.gcn_architecture:
            return [self.chip.gcn_architecture]
        return [self.chip.target] if self.chip.is_cuda else []

    # Random numbers.

    def manual_seed(self, seed: int) -> None:
        self.mode.random[self.mode.current_device].manual_seed(int(seed))

    def manual_seed_all(self, seed: int) -> None:
        for state in self.mode.random:
            state.manual_seed(int(seed))

    def rng_state(self, device: Any = "cuda") -> Tensor:
        return self.mode.random[self.index(device)].state

    def set_rng_state(self, new_state: Tensor, device: Any = "cuda") -> None:
        self.mode.random[self.index(device)].state = new_state

    def set_rng_state_all(self, states: list[Tensor]) -> None:
        for state, new in zip(self.mode.random, states, strict=False):
            state.state = new

    # Streams.

    @staticmethod
    def set_stream(stream: Stream | None) -> None:
        if stream is not None:
            CURRENT.stream = stream

    # The table.

    def answers(self) -> dict[str, Any]:
        """Names of `torch.cuda` and their replacements."""
        nothing = do_nothing
        return {
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "init": nothing,
            private.LAZY_INIT: nothing,
            # Asked by torch.utils.checkpoint before it keeps random states.
            private.INITIALIZED: True,
            private.LAZY_CALL: lambda call, **kwargs: call(),
            "device_count": self.device_count,
            "current_device": lambda: self.mode.current_device,
            "set_device": self.set_device,
            "device": self.device_context(),
            "device_of": self.device_context(),
            "get_device_name": self.name,
            "get_device_capability": self.capability,
            "get_device_properties": self.properties,
            "get_arch_list": self.architectures,
            "can_device_access_peer": lambda device, peer: True,
            "get_allocator_backend": lambda: "native",
            private.SLEEP: nothing,
            "is_bf16_supported": self.is_bf16_supported,
            "is_tf32_supported": lambda: self.chip.sm.has_tf32,
            "ipc_collect": nothing,
            "default_generators": tuple(
                DefaultGenerator(state, number) for number, state in enumerate(self.mode.random)
            ),
            **self.memory.answers(),
            "manual_seed": self.manual_seed,
            "manual_seed_all": self.manual_seed_all,
            "seed": lambda: self.manual_seed(torch.seed()),
            "seed_all": lambda: self.manual_seed_all(torch.seed()),
            "initial_seed": lambda: self.mode.random[self.mode.current_device].initial_seed,
            "get_rng_state": self.rng_state,
            "set_rng_state": self.set_rng_state,
            "get_rng_state_all": lambda: [state.state for state in self.mode.random],
            "set_rng_state_all": self.set_rng_state_all,
            "Stream": Stream,
            "ExternalStream": Stream,
            "Event": Event,
            "StreamContext": StreamContext,
            "stream": StreamContext,
            "current_stream": lambda device=None: CURRENT.stream,
            "default_stream": lambda device=None: Stream(device, stream_id=0),
            "set_stream": self.set_stream,
            "is_current_stream_capturing": lambda: self.mode.capture is not None,
            "utilization": refusal("torch.cuda.utilization"),
            "temperature": refusal("torch.cuda.temperature"),
            "power_draw": refusal("torch.cuda.power_draw"),
            "clock_rate": refusal("torch.cuda.clock_rate"),
        }

    def stand_ins(self) -> list[StandIn]:
        answers = self.answers()
        table = CudaCalls(self.mode, answers).stand_ins()
        for owner in (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            table += stand_ins_for(owner, answers)
        table += stand_ins_for(torch.accelerator, self.accelerator_answers())
        table += legacy_types.stand_ins()
        table += graphs.stand_ins(self.mode)
        table += Profiling(self.mode).stand_ins()
        table += self.memory.stand_ins()
        table += [
            *(
                StandIn(torch.cuda.nvtx, name, do_nothing)
                for name in ("range_push", "range_pop", "mark", "range_start", "range_end")
            ),
            StandIn(torch, "Stream", Stream),
            StandIn(torch, "Event", Event),
            StandIn(torch, "get_device", device_index),
            StandIn(*private.GET_ACCELERATOR, lambda *args: torch.device("cuda")),
            StandIn(scatter_gather, "Scatter", Scatter),
            StandIn(torch.backends.cudnn, "is_available", lambda: True),
            StandIn(torch.backends.cudnn, "version", lambda: releases.HERE.cudnn),
            # No flattened RNN weights: one buffer or several, the bytes are the same.
            StandIn(torch.backends.cudnn, "is_acceptable", lambda tensor: False),
            StandIn(torch.backends.cuda, "is_built", lambda: True),
            # The inference-only fused encoder layer has no shape function; the plain path runs.
            StandIn(torch.backends.mha, "get_fastpath_enabled", lambda: False),
            *rocm.versions(self.chip),
        ]
        return table

    def accelerator_answers(self) -> dict[str, Any]:
        answers = self.answers()
        return {
            "is_available": lambda: True,
            "device_count": self.device_count,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: self.mode.current_device,
            "current_device_idx": lambda: self.mode.current_device,
            "set_device_index": self.set_device,
            "set_device_idx": self.set_device,
            "device_index": self.device_context(),
            "get_device_capability": lambda device=None: {"supported_dtypes": set()},
            "current_stream": answers["current_stream"],
            "set_stream": answers["set_stream"],
            **self.memory.common_answers(),
            "get_memory_info": self.memory.mem_get_info,
        }


class Scatter:
    """Stands for what `nn.DataParallel` cuts batches with: one GPU takes the whole."""

    @staticmethod
    def apply(devices: list[int], sizes: Any, dim: int, tensor: Tensor) -> tuple[Tensor]:
        if len(devices) > 1:
            raise UnsupportedError(
                f"nn.DataParallel over {len(devices)} GPUs is not simulated: this run has one."
            )
        return (tensor.to(devices[0]),)


class DefaultGenerator:
    """One of `torch.cuda.default_generators`: a device's random state."""

    def __init__(self, random: RandomState, number: int) -> None:
        self.random = random
        self.device = torch.device("cuda", number)

    def manual_seed(self, seed: int) -> "DefaultGenerator":
        self.random.manual_seed(int(seed))
        return self

    def seed(self) -> int:
        seed = torch.seed()
        self.random.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        return self.random.initial_seed

    def clone_state(self) -> torch.Generator:
        cloned = torch.Generator(device=self.device)
        cloned.set_state(self.random.state)
        return cloned

    def get_state(self) -> Tensor:
        return self.random.state

    def set_state(self, state: Tensor) -> None:
        self.random.state = state


def is_no_device(device: Any) -> bool:
    """None or a negative number: torch then leaves the current device as it is."""
    return device is None or (isinstance(device, int) and device < 0)


def stand_ins_for(owner: ModuleType, answers: dict[str, Callable[..., Any]]) -> list[StandIn]:
    """Stand-ins for those names that this module of this torch has."""
    return [StandIn(owner, name, value) for name, value in answers.items() if hasattr(owner, name)]
