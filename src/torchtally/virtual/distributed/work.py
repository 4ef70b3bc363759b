"""What a collective returns: torch's `Work`, done as far as the host can tell."""

import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import Work

from torchtally import torch_private as private


def do_nothing(*args: Any) -> None: ...


class VirtualWork(Work):
    """A collective under way. Who waits for it is told to `on_wait`.

    Its tensors live until somebody waits (`TensorShelf` of ProcessGroupNCCL.cpp, since PyTorch
    2.7). Where nobody does, a watchdog lets go of them within 0.1 s of the end: here, once the
    script has let go of the work. Afterwards they are held weakly.
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        on_wait: Callable[[], None],
        on_future: Callable[[Sequence[Tensor]], None] = do_nothing,
        *,
        is_blocking: bool = False,
    ) -> None:
        super().__init__()
        self._on_future = on_future
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._held = () if is_blocking else tuple(tensors)
        self._on_wait = on_wait

    def let_go(self) -> None:
        """Lets its tensors go."""
        self._held = ()

    @property
    def holds(self) -> bool:
        return bool(self._held)

    def result(self) -> list[Tensor]:
        return [tensor for held in self._tensors if (tensor := held()) is not None]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """The current stream waits; the host does not (ProcessGroupNCCL::WorkNCCL)."""
        self._on_wait()
        self.let_go()
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def get_future(self) -> Any:
        """Done, with the tensors, which DDP's reducer reads (torch/csrc/distributed/c10d).

        Of the type `List[Tensor]`, which C++ hooks ask for.
        """
        self._on_future(self.result())
        self.let_go()
        return private.done_future(self.result())
