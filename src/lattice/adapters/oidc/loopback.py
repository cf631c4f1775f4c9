"""The address on this machine to which the browser returns once with the answer.

It listens on 127.0.0.1 and a port that the kernel chooses. It answers one path, and only requests
with our own `state`. Other programs on the machine may connect too. They can neither submit an
answer nor end the wait.
"""

from __future__ import annotations

import hmac
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

_PATH = "/callback"
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Lattice</title>
<body style="font: 1.1em sans-serif; margin: 4em auto; max-width: 30em">
<h1>{title}</h1><p>{text}</p></body></html>
"""


class Loopback:
    """Listens during a `with` block."""

    def __init__(self, state: str) -> None:
        self._state = state
        self._answer: Mapping[str, str] | None = None
        self._arrived = threading.Event()
        self._lock = threading.Lock()
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 5
            server_version = "lattice"
            sys_version = ""

            def do_GET(self) -> None:
                status, title, text = loopback.receive(self.path)
                page = _PAGE.format(title=title, text=text).encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(page)))
                self.send_header(
                    "Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"
                )
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(page)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing: the address contains the code."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="loopback", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    @property
    def address(self) -> str:
        """The redirect address for the browser."""
        return f"http://127.0.0.1:{self._server.server_port}{_PATH}"

    def wait(self, timeout_s: float) -> Mapping[str, str] | None:
        """The parameters of the answer, or None if none came in time."""
        self._arrived.wait(timeout_s)
        return self._answer

    def receive(self, path: str) -> tuple[int, str, str]:
        """Handle one request's path; returns status, title and text of the page."""
        parts = urlsplit(path)
        if parts.path != _PATH:
            return 404, "Not here", "There is nothing at this address."
        given = dict(parse_qsl(parts.query, max_num_fields=20))
        if not hmac.compare_digest(given.get("state", "").encode(), self._state.encode()):
            return 400, "Not expected", "This is not the answer that was asked for."
        with self._lock:
            if self._answer is not None:
                return 410, "Already done", "The answer has been taken."
            self._answer = given
        self._arrived.set()
        if "error" in given:
            return 200, "Not signed in", "See the terminal for what went wrong."
        return 200, "Signed in", "You can close this window and go back to the terminal."
