"""A small real web server for tests: plain or TLS, answering from a table, remembering requests."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Request:
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent as it is instead of an HTTP answer."""
    pieces: Iterable[bytes] | None = None
    """A body sent piece by piece, in chunks; ended as a whole one unless `cut`."""
    cut: bool = False


Route = Answer | dict[str, Any] | list[Any] | Callable[[Request], "Answer | dict[str, Any]"]


@dataclass
class Web:
    url: str
    routes: dict[str, Route]
    requests: list[Request]

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0


@contextmanager
def web(routes: dict[str, Route], *, context: ssl.SSLContext | None = None) -> Iterator[Web]:
    """Serve until the block ends. Routes are keyed by path, `*` is for the rest."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            parts = urlsplit(self.path)
            size = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(
                self.command, parts.path, parse_qs(parts.query), headers, self.rfile.read(size)
            )
            requests.append(request)
            route = routes.get(parts.path, routes.get("*", Answer(status=404)))
            made = route(request) if callable(route) else route
            made = made if isinstance(made, Answer) else Answer(made)
            if made.raw is not None:
                self.wfile.write(made.raw)
                self.close_connection = True
                return
            if made.pieces is not None:
                _send_pieces(self, made)
                return
            content = made.body if isinstance(made.body, bytes) else json.dumps(made.body).encode()
            self.send_response(made.status)
            for name, value in made.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if context is None else "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="web", daemon=True)
    thread.start()
    try:
        yield Web(f"{scheme}://127.0.0.1:{server.server_port}", routes, requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def _send_pieces(handler: BaseHTTPRequestHandler, made: Answer) -> None:
    handler.send_response(made.status)
    for name, value in made.headers.items():
        handler.send_header(name, value)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.close_connection = True
    with suppress(OSError):  # the caller may hang up
        for piece in made.pieces or ():
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if not made.cut:
            handler.wfile.write(b"0\r\n\r\n")
