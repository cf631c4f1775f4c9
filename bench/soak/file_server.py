"""A plain file server over TLS, for the control rounds of `bench.soak.hostile`.

    python -m bench.soak.file_server ADDRESS PORT FILE CERTIFICATE KEY

`/N` answers with the first N bytes of the file, whatever the method. A thread a connection, no
bounds of its own. It ends when its standard input does.
"""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from bench.measuring import end_with_the_first


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    descriptor = -1
    """Of the file that is served."""

    def do_GET(self) -> None:
        size = int(self.path.strip("/") or 0)
        content = os.pread(self.descriptor, size, 0)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as its parent
        """Say nothing: a terminal that scrolls is load, too."""


class FileServer(ThreadingHTTPServer):
    """The handshake is done by a connection's own thread, so a slow client holds up nobody."""

    request_queue_size = 256
    daemon_threads = True

    def __init__(self, address: str, port: int, file: str, tls: ssl.SSLContext) -> None:
        handler = type("Handler", (_Handler,), {"descriptor": os.open(file, os.O_RDONLY)})
        super().__init__((address, port), handler)
        self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def server_bind(self) -> None:
        # Its parent asks for a name of the address, and the lab has nobody who knows.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(
        self,
        request: socket.socket | tuple[bytes, socket.socket],
        client_address: object,
    ) -> None:
        """Clients that leave in the middle are what this is for."""


def main(address: str, port: str, file: str, certificate: str, key: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    end_with_the_first()
    with FileServer(address, int(port), file, tls) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
