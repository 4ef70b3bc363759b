"""The layers that clients send by, and what each answers where a request would publish something.

Below urllib, urllib3, requests and botocore is `http.client`, and httpx and aiohttp have transports
of their own. The Go service of W&B, which sends for it, is spoken to in one function; so is gRPC.
"""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial, wraps
from types import FrameType
from typing import Any

from torchtally.errors import TallyError
from torchtally.isolation.programs import publishing_command
from torchtally.isolation.publishing import WHY, HttpAnswer, HttpRequest, answer, publisher
from torchtally.isolation.threads import OtherThreads
from torchtally.trace import EffectKind
from torchtally.virtual.later_modules import Replacements
from torchtally.virtual.stand_ins import StandIn

Report = Callable[[EffectKind, str, FrameType | None], None]


class RefusedUploadError(TallyError, PermissionError):
    """Something that would have been published, where a client has no answer to go on with."""


passing: ContextVar[bool] = ContextVar("passing", default=False)
"""Whether an upper layer has let this request go already."""


class Gate:
    """Decides on each request of a run, and reports what it decided."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._other_threads = OtherThreads()

    @property
    def is_in_other_thread(self) -> bool:
        """One that ran before the run."""
        return self._other_threads.is_current

    @property
    def is_open(self) -> bool:
        return passing.get() or self.is_in_other_thread

    def answer(self, request: HttpRequest, frame: FrameType | None) -> HttpAnswer | None:
        """What the script gets in place of the server's answer; None: the request is made."""
        if self.is_open:
            return None
        by = publisher(request, frame)
        if by is not None:
            shown = request.host if by == request.host else f"{request.host} ({by})"
            self.withhold(f"{request.method} {shown}", frame)
            return answer(request)
        if request.changes:
            self._report(EffectKind.SENT, request.host, frame)
        return None

    def withhold(self, shown: str, frame: FrameType | None) -> None:
        self._report(EffectKind.WITHHELD, shown, frame)

    def refuse(self, shown: str, frame: FrameType | None) -> RefusedUploadError:
        """Report it, and what to raise in its place."""
        self.withhold(shown, frame)
        return RefusedUploadError(f"{shown}: {WHY}.")


def layers(gate: Gate) -> list[tuple[str, Replacements]]:
    """What is replaced, by module."""
    return [
        ("http.client", partial(http_client, gate)),
        ("urllib3.connectionpool", partial(urllib3, gate)),
        ("httpx._transports.default", partial(httpx, gate, "httpx")),
        ("httpx2._transports.default", partial(httpx, gate, "httpx2")),
        ("aiohttp.client", partial(aiohttp, gate)),
        ("wandb.sdk.lib.service.service_client", partial(wandb_service, gate)),
        ("grpc._channel", partial(grpc, gate)),
        ("hf_xet", partial(xet, gate)),
        ("os", partial(programs, gate)),
    ]


# HTTP --------------------------------------------------------------------------------------------


class AnsweringSocket:
    """In place of a connection: takes what is sent, and has an answer to be read."""

    def __init__(self, answer: HttpAnswer) -> None:
        self._answer = answer.bytes

    def sendall(self, data: object) -> None:
        """Sends nothing."""

    send = sendall

    def makefile(self, *args: object, **options: object) -> io.BytesIO:
        return io.BytesIO(self._answer)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """`settimeout`, `shutdown`, `close` and their like do nothing."""
        return lambda *args, **options: None


def http_client(gate: Gate, module: Any) -> list[StandIn]:
    native = module.HTTPConnection.putrequest

    @wraps(native)
    def putrequest(connection: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        host = connection._tunnel_host or connection.host
        request = HttpRequest(method.upper(), str(host).lower(), url)
        if "://" in url:  # to a proxy
            request = HttpRequest.to(method, url)
        answer_ = gate.answer(request, sys._getframe(1))
        if answer_ is not None:
            connection.close()
            connection.sock = AnsweringSocket(answer_)
        return native(connection, method, url, *args, **options)

    return [StandIn(module.HTTPConnection, "putrequest", putrequest)]


def urllib3(gate: Gate, module: Any) -> list[StandIn]:
    """Before it connects, and with the body in hand."""
    native = module.HTTPConnectionPool.urlopen

    @wraps(native)
    def urlopen(
        pool: Any, method: str, url: str, body: Any = None, *args: Any, **options: Any
    ) -> Any:
        request = HttpRequest.to(method, url, body)
        answer_ = gate.answer(request._replace(host=str(pool.host).lower()), sys._getframe(1))
        if answer_ is not None:
            return sys.modules["urllib3"].HTTPResponse(
                body=io.BytesIO(answer_.body.encode()),
                headers=answer_.headers,
                status=answer_.status,
                reason=answer_.reason,
                preload_content=options.get("preload_content", True),
                request_method=method,
                request_url=url,
            )
        token = passing.set(True)
        try:
            return native(pool, method, url, body, *args, **options)
        finally:
            passing.reset(token)

    return [StandIn(module.HTTPConnectionPool, "urlopen", urlopen)]


def httpx(gate: Gate, package: str, module: Any) -> list[StandIn]:
    send, send_async = (
        module.HTTPTransport.handle_request,
        module.AsyncHTTPTransport.handle_async_request,
    )

    def answered(request: Any, frame: FrameType | None) -> Any:
        try:
            body = request.content
        except Exception:  # a stream, which is read once
            body = None
        sent = HttpRequest.to(request.method, str(request.url), body)
        answer_ = gate.answer(sent, frame)
        if answer_ is None:
            return None
        return sys.modules[package].Response(
            answer_.status,
            headers=answer_.headers,
            content=answer_.body.encode(),
            request=request,
            extensions={"reason_phrase": answer_.reason.encode()},
        )

    @wraps(send)
    def handle_request(transport: Any, request: Any) -> Any:
        response = answered(request, sys._getframe(1))
        return send(transport, request) if response is None else response

    @wraps(send_async)
    async def handle_async_request(transport: Any, request: Any) -> Any:
        response = answered(request, sys._getframe(1))
        return await send_async(transport, request) if response is None else response

    return [
        StandIn(module.HTTPTransport, "handle_request", handle_request),
        StandIn(module.AsyncHTTPTransport, "handle_async_request", handle_async_request),
    ]


def aiohttp(gate: Gate, module: Any) -> list[StandIn]:
    """Its responses are made of a connection alone: what is refused is raised as a response's
    error.
    """
    native = module.ClientSession._request

    @wraps(native)
    async def request(session: Any, method: str, url: Any, *args: Any, **options: Any) -> Any:
        base = getattr(session, "_base_url", None)
        address = str(url if base is None else base.join(sys.modules["yarl"].URL(str(url))))
        body = options.get("json") or options.get("data")
        sent = HttpRequest.to(method, address, str(body) if isinstance(body, dict) else body)
        answer_ = gate.answer(sent, sys._getframe(1))
        if answer_ is None:
            return await native(session, method, url, *args, **options)
        raise sys.modules["aiohttp"].ClientResponseError(
            None, (), status=403, message=f"{method} {sent.host}: {WHY}"
        )

    return [StandIn(module.ClientSession, "_request", request)]


# What is not HTTP --------------------------------------------------------------------------------

WANDB_READS = frozenset({"read_run_history_request", "features_request", "download_file_request",
                         "auth_request", "read_run_console_logs_request"})  # fmt: skip
WANDB_KEEPS = frozenset({"cancel", "inform_finish", "inform_detach", "inform_teardown",
                         "authenticate", "sync_status", "api_init_request", "api_cleanup_request",
                         "sweep_scheduler_stop"})  # fmt: skip
"""What the service is asked that sends nothing of a run."""


def wandb_service(gate: Gate, module: Any) -> list[StandIn]:
    """All that the Go service of W&B is asked to do."""

    def check(request: Any, frame: FrameType | None) -> None:
        kind = request.WhichOneof("server_request_type") or ""
        if gate.is_open or kind in WANDB_KEEPS:
            return
        if kind == "api_request":
            api = request.api_request
            kind = next((field.name for field, _ in api.ListFields() if field.message_type), "")
            query = api.graphql_request.query if kind == "graphql_request" else None
            if kind in WANDB_READS or HttpRequest("POST", "", "/graphql", query).is_query:
                return
        raise gate.refuse(f"wandb {kind}", frame)

    def asking(native: Any) -> Any:
        @wraps(native)
        async def ask(client: Any, request: Any) -> Any:
            check(request, sys._getframe(1))
            return await native(client, request)

        return ask

    owner = module.ServiceClient
    return [StandIn(owner, name, asking(getattr(owner, name))) for name in ("publish", "deliver")]


GRPC_SERVICES = ("/opentelemetry.proto.collector.", "/tensorboard.service.", "/google.logging.",
                 "/google.monitoring.", "/google.cloud.aiplatform.", "/google.storage.",
                 "/google.pubsub.")  # fmt: skip
GRPC_READS = ("Get", "List", "Read", "Search", "Query", "Batch", "Tail", "Stream", "Predict")


def grpc(gate: Gate, module: Any) -> list[StandIn]:
    """Calls of services that keep what they are sent."""

    def method(native: Any) -> Any:
        @wraps(native)
        def connect(channel: Any, method: Any, *args: Any, **options: Any) -> Any:
            call = native(channel, method, *args, **options)
            name = os.fsdecode(method)
            reads = name.rpartition("/")[2].startswith(GRPC_READS)
            if reads or not name.startswith(GRPC_SERVICES):
                return call

            def refused(*args: Any, **options: Any) -> Any:
                if gate.is_open:
                    return call(*args, **options)
                raise gate.refuse(f"gRPC {name}", sys._getframe(1))

            return refused

        return connect

    owner = module.Channel
    names = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    return [StandIn(owner, name, method(getattr(owner, name))) for name in names]


def xet(gate: Gate, module: Any) -> list[StandIn]:
    """Uploads of Hugging Face's own storage, in Rust."""

    def refused(name: str) -> Any:
        def upload(*args: Any, **options: Any) -> Any:
            raise gate.refuse(f"hf_xet {name}", sys._getframe(1))

        return upload

    names = [name for name in dir(module) if name.startswith("upload_")]
    return [StandIn(module, name, refused(name)) for name in names]


def programs(gate: Gate, module: Any) -> list[StandIn]:
    """A program that would publish something is not started: it counts as done."""
    system, popen = os.system, subprocess.Popen.__init__

    @wraps(system)
    def run(command: Any) -> int:
        if not gate.is_open and (shown := publishing_command(command)):
            gate.withhold(shown, sys._getframe(1))
            return 0
        return system(command)

    @wraps(popen)
    def start(process: Any, args: Any, *rest: Any, **options: Any) -> None:
        if not gate.is_open and (shown := publishing_command(args)):
            gate.withhold(shown, sys._getframe(1))
            args, rest = [sys.executable, "-c", ""], ()
            options = {name: options[name] for name in PIPES if name in options}
        popen(process, args, *rest, **options)

    return [StandIn(os, "system", run), StandIn(subprocess.Popen, "__init__", start)]


PIPES = ("stdin", "stdout", "stderr", "text", "universal_newlines", "encoding", "errors", "bufsize")
