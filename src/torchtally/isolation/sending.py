"""The layers that clients send by, and what each answers where a request would publish something.

Below urllib, urllib3, requests and botocore is `http.client`, and httpx and aiohttp have transports
of their own. The Go service of W&B, which sends for it, is spoken to in one function; so is gRPC.
"""

import io
import os
import sys
from collections.abc import Callable
from typing import Any

from torchtally.isolation.passages import MADE, ClientCall, Passage
from torchtally.isolation.programs import publishing_command
from torchtally.isolation.publishing import WHY, HttpAnswer, HttpRequest

# HTTP --------------------------------------------------------------------------------------------


class AnsweringSocket:
    """A socket in place of a connection: takes what is sent, and has an answer to be read."""

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


def http_client(
    call: ClientCall, connection: Any, method: str, url: str, *_: Any, **__: Any
) -> Any:
    host = connection._tunnel_host or connection.host
    request = HttpRequest(method.upper(), str(host).lower(), url)
    if "://" in url:  # to a proxy
        request = HttpRequest.to(method, url)
    answer = call.gate.answer(request, call.frame)
    if answer is not None:
        connection.close()
        connection.sock = AnsweringSocket(answer)
    return MADE


def urllib3(
    call: ClientCall, pool: Any, method: str, url: str, body: Any = None, *_: Any, **options: Any
) -> Any:
    """Stand-in before urllib3 connects, and with the body in hand."""
    request = HttpRequest.to(method, url, body)._replace(host=str(pool.host).lower())
    answer = call.gate.answer(request, call.frame)
    if answer is None:
        return MADE
    return sys.modules["urllib3"].HTTPResponse(
        body=io.BytesIO(answer.body.encode()),
        headers=answer.headers,
        status=answer.status,
        reason=answer.reason,
        preload_content=options.get("preload_content", True),
        request_method=method,
        request_url=url,
    )


def httpx(call: ClientCall, transport: Any, request: Any) -> Any:
    try:
        body = request.content
    except Exception:  # a stream, which is read once
        body = None
    sent = HttpRequest.to(request.method, str(request.url), body)
    answer = call.gate.answer(sent, call.frame)
    if answer is None:
        return MADE
    return sys.modules[call.module.__name__.partition(".")[0]].Response(
        answer.status,
        headers=answer.headers,
        content=answer.body.encode(),
        request=request,
        extensions={"reason_phrase": answer.reason.encode()},
    )


def aiohttp(call: ClientCall, session: Any, method: str, url: Any, *_: Any, **options: Any) -> Any:
    """Its responses are made of a connection alone: what is refused is raised as a response's
    error.
    """
    base = getattr(session, "_base_url", None)
    address = str(url if base is None else base.join(sys.modules["yarl"].URL(str(url))))
    body = options.get("json") or options.get("data")
    sent = HttpRequest.to(method, address, str(body) if isinstance(body, dict) else body)
    if call.gate.answer(sent, call.frame) is None:
        return MADE
    raise sys.modules["aiohttp"].ClientResponseError(
        None, (), status=403, message=f"{method} {sent.host}: {WHY}"
    )


# What is not HTTP --------------------------------------------------------------------------------

WANDB_READS = frozenset(
    """
    read_run_history_request features_request download_file_request auth_request
    read_run_console_logs_request
    """.split()
)
WANDB_KEEPS = frozenset(
    """
    cancel inform_finish inform_detach inform_teardown authenticate sync_status api_init_request
    api_cleanup_request sweep_scheduler_stop
    """.split()
)
"""What the service is asked that sends nothing of a run."""


def wandb_service(call: ClientCall, client: Any, request: Any) -> Any:
    """All that the Go service of W&B is asked to do."""
    kind = request.WhichOneof("server_request_type") or ""
    if kind in WANDB_KEEPS:
        return MADE
    if kind == "api_request":
        api = request.api_request
        kind = next((field.name for field, _ in api.ListFields() if field.message_type), "")
        query = api.graphql_request.query if kind == "graphql_request" else None
        if kind in WANDB_READS or HttpRequest("POST", "", "/graphql", query).is_query:
            return MADE
    raise call.refuse(f"wandb {kind}")


GRPC_SERVICES = tuple(
    """
    /opentelemetry.proto.collector. /tensorboard.service. /google.logging. /google.monitoring.
    /google.cloud.aiplatform. /google.storage. /google.pubsub.
    """.split()
)
GRPC_READS = ("Get", "List", "Read", "Search", "Query", "Batch", "Tail", "Stream", "Predict")


def grpc(call: ClientCall, channel: Any, method: Any, *args: Any, **options: Any) -> Any:
    """Calls of services that keep what they are sent."""
    name = os.fsdecode(method)
    if name.rpartition("/")[2].startswith(GRPC_READS) or not name.startswith(GRPC_SERVICES):
        return MADE
    made = call.native(channel, method, *args, **options)

    def refused(*args: Any, **options: Any) -> Any:
        if call.gate.is_open:
            return made(*args, **options)
        raise call._replace(frame=sys._getframe(1)).refuse(f"gRPC {name}")

    return refused


def xet(call: ClientCall, *_: Any, **__: Any) -> Any:
    """Uploads of Hugging Face's own storage, in Rust."""
    raise call.refuse(f"hf_xet {call.name}")


# Programs ----------------------------------------------------------------------------------------

PIPES = ("stdin", "stdout", "stderr", "text", "universal_newlines", "encoding", "errors", "bufsize")


def system(call: ClientCall, command: Any) -> Any:
    """A program that would publish something is not started: it counts as done."""
    if not (shown := publishing_command(command)):
        return MADE
    call.withhold(shown)
    return 0


def popen(call: ClientCall, process: Any, args: Any, *_: Any, **options: Any) -> Any:
    if not (shown := publishing_command(args)):
        return MADE
    call.withhold(shown)
    pipes = {name: options[name] for name in PIPES if name in options}
    return call.native(process, [sys.executable, "-c", ""], **pipes)


LAYERS = (
    Passage("http.client", "HTTPConnection", "putrequest", http_client),
    Passage("urllib3.connectionpool", "HTTPConnectionPool", "urlopen", urllib3),
    Passage("httpx._transports.default", "HTTPTransport", "handle_request", httpx),
    Passage("httpx._transports.default", "AsyncHTTPTransport", "handle_async_request", httpx),
    Passage("httpx2._transports.default", "HTTPTransport", "handle_request", httpx),
    Passage("httpx2._transports.default", "AsyncHTTPTransport", "handle_async_request", httpx),
    Passage("aiohttp.client", "ClientSession", "_request", aiohttp),
    Passage(
        "wandb.sdk.lib.service.service_client", "ServiceClient", "publish|deliver", wandb_service
    ),
    Passage("grpc._channel", "Channel", "(unary|stream)_(unary|stream)", grpc),
    Passage("hf_xet", "", "upload_.*", xet),
    Passage("os", "", "system", system),
    Passage("subprocess", "Popen", "__init__", popen),
)
