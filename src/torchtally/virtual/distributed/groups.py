"""Process groups of a world of which one rank is there: torch's own, over backends that do nothing.

torch makes them (`_new_process_group_helper`): names, tags, subgroups and device meshes are its
own. Only what it calls to make a backend is replaced.
"""

from collections.abc import Callable, Iterable
from datetime import timedelta
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch.distributed as dist

from torchtally import torch_private as private
from torchtally.trace import ProcessGroup, World
from torchtally.virtual.distributed.exchange import Messages
from torchtally.virtual.distributed.rendezvous import rendezvous_at
from torchtally.virtual.distributed.stores import store_of
from torchtally.virtual.distributed.work import VirtualWork, do_nothing
from torchtally.virtual.stand_ins import StandIn
from torchtally.virtual.storage import virtual_of

if TYPE_CHECKING:
    from torchtally.virtual.distributed.symmetric import Peers

NCCL_TIMEOUT = timedelta(minutes=10)
"""torch's default, which a build without NCCL does not know (torch/distributed/constants.py)."""


OURS = 4
"""References to a work that nobody else has: two lists, a loop, and the question itself."""


class BackendType(type):
    """Type of the classes below: calling one makes a backend of torch's that does nothing."""

    groups: "ProcessGroups"

    def __init__(cls, *args: Any) -> None:
        super().__init__(*args)
        cls.instances: list[Any] = []

    def __call__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        backend = cls.groups.make_backend(rank, size)
        cls.instances.append(
            backend
        )  # also so that the Python object stays the one of this backend
        return backend

    def __instancecheck__(cls, instance: object) -> bool:
        return any(backend is instance for backend in cls.instances)


class NcclOptions:
    """Stands for `ProcessGroupNCCL.Options`."""

    class Config:
        """`ncclConfig_t`: any attribute may be set."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NcclOptions.Config()


class GlooOptions:
    """Stands for `ProcessGroupGloo._Options`."""


class ProcessGroups:
    """The groups of one session, in the order in which the traced rank was put in them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_prepared = False
        self.prepare: Callable[[], None] = do_nothing
        """Called before the first group is made; set by the session."""
        self.note: Callable[[str], None] = lambda text: None
        """Tells the report; set by the session."""
        self.groups: list[ProcessGroup] = []
        self._numbers: dict[str, int] = {}
        self._nccl: BackendType | None = None
        self.works: list[VirtualWork] = []
        """What collectives returned: C++ calls their methods, and does not keep the objects."""
        self._holding: list[VirtualWork] = []
        """Of these, those that still hold tensors."""
        self.messages: Messages | None = None
        """To and from other ranks that are simulated at the same time."""
        self.arrivals: list[Callable[[], None]] = []
        """Of messages that are being issued together: what takes each over."""
        self.coalesced: list[Any] = []
        """The tensors of collectives that are being issued together."""
        self.coalescing: int | None = None
        """The first tick of the collectives that are being issued together."""
        self.promised: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        """Storages of collectives whose future was asked for: C++ waits for it out of our sight."""
        self.peers: Peers | None = None
        """Memory of other ranks, from the first group on."""
        self.pending: WeakKeyDictionary[Any, tuple[int, int]] = WeakKeyDictionary()
        """Storages that a functional collective writes: its stream, and the tick after it."""

    def number(self, group: Any) -> int:
        """The number of a group in the trace."""
        name = str(group.group_name)
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.groups)
            ranks = tuple(dist.get_process_group_ranks(group))
            self.groups.append(ProcessGroup(name, str(group.group_desc), ranks))
        return number

    def seeks_help(self, rank: int) -> bool:
        """Whether a rank runs at the same time as this one, or has been made to."""
        return self.messages is not None and self.messages.exchange.seek_help(rank)

    def is_nccl(self, backend: Any) -> bool:
        """Whether a backend stands for NCCL's."""
        return self._nccl is not None and isinstance(backend, self._nccl)

    def begin(self, work: VirtualWork) -> None:
        """A collective is under way; those of which the script has let go have ended."""
        for other in self._holding:
            if getrefcount(other) == OURS:
                other.let_go()
        self._holding = [other for other in self._holding if other.holds]
        self.works.append(work)
        if work.holds:
            self._holding.append(work)

    def promise(self, tensors: Iterable[Any], stream: int | None, until: int) -> None:
        """Who next uses these tensors waits for the collective, at the latest."""
        for tensor in tensors if stream is not None else ():
            virtual = virtual_of(tensor)
            if virtual is not None and stream is not None:
                self.promised[virtual] = (stream, until)

    def keep_promises(self, virtuals: Iterable[Any], wait: Callable[[int, int], None]) -> None:
        """Keeps promises before an operator that uses these storages."""
        for virtual in virtuals:
            promised = None if virtual is None else self.promised.pop(virtual, None)
            if promised is not None:
                wait(*promised)

    def be_prepared(self) -> None:
        if not self.is_prepared:
            self.is_prepared = True
            self.prepare()

    def make_backend(self, rank: int, size: int) -> Any:
        self.be_prepared()
        return private.make_idle_backend(rank, size)

    def preparing(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """What makes a group of any backend: a plugin's (torch's "fake") is not made above."""

        def make_group(*args: Any, **kwargs: Any) -> Any:
            self.be_prepared()
            return native(*args, **kwargs)

        return make_group

    def stand_ins(self) -> list[StandIn]:
        if not dist.is_available():
            return []
        module: Any = private.distributed_module()
        nccl = BackendType("ProcessGroupNCCL", (), {"Options": NcclOptions})
        gloo = BackendType("ProcessGroupGloo", (), {"_Options": GlooOptions})
        nccl.groups = gloo.groups = self
        self._nccl = nccl
        names = private.group_names()
        store = store_of(self.world.size, self.note)

        def split(backend: Any, store: Any, ranks: list[int], options: Any) -> Any:
            """The backend of a group of some of a group's ranks, this one among them."""
            return nccl(store, ranks.index(dist.get_rank()), len(ranks))

        return [
            *(
                StandIn(owner, name, value, is_new=True)  # of NCCL, and of either module
                for owner in (module, dist)
                for name, value in (
                    # From 2.15 on "nccl" means the second; the first is "nccl-legacy".
                    ("ProcessGroupNCCL", nccl),
                    ("ProcessGroupNCCL2", nccl),
                    ("ProcessGroupNCCLLazy", nccl),
                    ("ProcessGroupGloo", gloo),
                    ("is_nccl_available", lambda: True),
                    ("TCPStore", store),
                    ("FileStore", store),
                    ("rendezvous", rendezvous_at(store)),
                    ("default_pg_nccl_timeout", NCCL_TIMEOUT),
                )
            ),
            # From 2.15 on a group of a group's ranks is split from it; ranks outside say so.
            StandIn(*names["split"], split, is_new=True),
            StandIn(*names["leave_split"], lambda backend, device: None, is_new=True),
            StandIn(*names["set_timeout"], lambda backend, timeout: None, is_new=True),
            StandIn(*names["number"], lambda backend: None),
            StandIn(*names["make"], self.preparing(getattr(*names["make"]))),
            # Of NCCL alone, which torch calls to abort.
            StandIn(*names["group_start"], lambda backend: None, is_new=True),
            StandIn(*names["group_end"], lambda backend: None, is_new=True),
            StandIn(*names["barrier"], lambda *args, **kwargs: None),
            # DDP's logger has no clock for what C++ takes for meta tensors, and warns of it.
            StandIn(*private.ddp_statistics(), lambda logger: None),
            # TORCH_DISTRIBUTED_DEBUG=DETAIL checks collectives between ranks.
            StandIn(*names["wrap_for_debugging"], lambda wrapped_pg, **kwargs: wrapped_pg),
        ]
