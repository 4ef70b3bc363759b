"""What of the network a run may use: `--network off`, `downloads` or `on`.

off         no connection: the kernel denies TCP to a process of tally's own and to all that it
            starts (`kernel`); Python's sockets are refused wherever the run is
downloads   what is known to publish something is not sent; what else is sent is reported by host
on          as without tally
"""

import atexit
import ctypes
import ipaddress
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import local
from types import FrameType
from typing import Any

from torchtally.errors import TallyError
from torchtally.isolation import audit
from torchtally.isolation.environment import environment
from torchtally.isolation.kernel import deny_connections
from torchtally.isolation.passages import Gate, passing, replacements
from torchtally.isolation.sending import LAYERS
from torchtally.isolation.uploads import ANSWERS, ENVIRONMENT, REMOTE
from torchtally.options.simulation import Network
from torchtally.trace import EffectKind
from torchtally.virtual.later_modules import patching

OFF_BY_KERNEL, OFF_BY_PYTHON = "off, by the kernel", "off, by Python's own functions"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""By which libraries use what they have downloaded, without asking for it first."""
KIND = "network"


class RefusedConnectionError(TallyError, PermissionError):
    """A connection where the run may use no network."""


@contextmanager
def limited_network(
    network: Network, report: audit.Report, *, is_own_process: bool = False
) -> Iterator[str]:
    """Context in which the script publishes nothing, or connects to nothing, as is asked for.
    `report` is told of what was withheld and what was sent, and where. What is given says who
    enforces it.

    In a process of tally's own that holds until it has ended: clients send what is left at exit.
    """
    if network == "on":
        yield network
        return
    gate, network_of_run = Gate(report), str(network)
    variables = {**ENVIRONMENT, **(OFFLINE if network == "off" else {})}
    with ExitStack() as stack:
        stack.enter_context(environment(variables, REMOTE))
        stack.enter_context(patching(replacements((*ANSWERS, *LAYERS), gate)))
        stack.enter_context(watched(Watch(gate, report, is_off=network == "off")))
        if is_own_process:
            # Never freed: a generator that is freed ends its `with`, at Python's exit, too.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(stack.pop_all()))
            # Called after what the script registers; then names of modules are set to None.
            atexit.register(audit.watch, KIND, None, CHECKS)
        if network == "off":
            by_kernel = is_own_process and deny_connections()
            network_of_run = OFF_BY_KERNEL if by_kernel else OFF_BY_PYTHON
        yield network_of_run


class Watch:
    """Sees each connection that Python code opens."""

    def __init__(self, gate: Gate, report: audit.Report, *, is_off: bool) -> None:
        self.gate, self.report, self.is_off = gate, report, is_off
        self.asked = local()

    def name(self, address: object, frame: FrameType | None) -> None:
        """A name is looked up: whatever is connected to next is reported by it."""
        if self.gate.is_in_other_thread or not isinstance(address, (str, bytes)):
            return
        self.asked.name = host = os.fsdecode(address)
        if self.is_off and not is_local(host):
            raise self.refused(host, frame)

    def connect(self, address: object, frame: FrameType | None, *, is_datagram: bool) -> None:
        """A socket is connected, or sends to an address; that of a file is this machine's."""
        if self.gate.is_in_other_thread or not isinstance(address, tuple):
            return
        host, port = str(address[0]), address[1]
        if self.is_off:
            raise self.refused(f"{host}:{port}", frame)
        is_request = passing.get() or (is_datagram and port == NAME_SERVER) or is_in(WEB, frame)
        if not is_request and not is_local(host):
            name = getattr(self.asked, "name", host)
            self.report(EffectKind.SENT, f"{name}:{port}", frame)

    def refused(self, place: str, frame: FrameType | None) -> RefusedConnectionError:
        self.report(EffectKind.REFUSED, place, frame)
        return RefusedConnectionError(
            f"tally refused to connect to {place}: this run has --network off.\n"
            "Let it download with --network downloads."
        )


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Context in which all that Python code connects to is seen."""
    before = audit.watch(KIND, watch, CHECKS)
    try:
        yield
    finally:
        audit.watch(KIND, before, CHECKS)


def check_socket(watch: Watch, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
    watch.connect(args[1], frame, is_datagram=event != "socket.connect")


def check_name(watch: Watch, _: str, args: tuple[Any, ...], frame: FrameType) -> None:
    watch.name(args[0], frame)


CHECKS: dict[str, audit.Check] = {
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.sendmsg"), check_socket),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname"), check_name),
}

NAME_SERVER = 53
WEB = frozenset(
    {"http", "urllib3", "httpcore", "httpcore2", "anyio", "aiohttp", "aiohappyeyeballs"}
)
"""What opens connections for requests, which are seen one by one."""


def is_in(packages: frozenset[str], frame: FrameType | None) -> bool:
    while frame is not None:
        if (frame.f_globals.get("__name__") or "").partition(".")[0] in packages:
            return True
        frame = frame.f_back
    return False


def is_local(host: str) -> bool:
    """Whether it is this machine's own address, or any of them."""
    if host in ("", "localhost", "0.0.0.0", "::"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
