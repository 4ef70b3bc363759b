"""A server on this machine that writes down what it is asked."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Requests = list[tuple[str, str]]
"""(method, path), in order."""


@contextmanager
def counting_server() -> Iterator[tuple[str, Requests]]:
    """Its address, and the requests that have reached it so far."""
    requests: Requests = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            requests.append((self.command, self.path))
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(b"{}")

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self.answer
            raise AttributeError(name)

        def log_message(self, *args: object) -> None:
            """Tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def changing(requests: Requests) -> list[str]:
    """The paths of those that are not reads."""
    return [path for method, path in requests if method not in ("GET", "HEAD", "OPTIONS")]
