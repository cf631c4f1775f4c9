"""A server and a node for terminals: real WebSockets on loopback, and the far end of the pipe.

What is on the node is a function of the messages that come; connections can be cut, refused and
made silent, and the far end outlives them as the holder does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lattice.domain.pipe import Pipe
from lattice.domain.terminal import TerminalMessage, read_message, write_message
from tests.eventually import PATIENCE_S

OPENED = {
    "type": "opened",
    "node": "n1",
    "replica": "a",
    "job": "42",
    "user": "alice",
    "ends": None,
    "recorded": False,
}


class FarEnd:
    """The node's end. `answer` is called with each message; `say` speaks by itself."""

    def __init__(self, answer: Callable[[FarEnd, TerminalMessage], None] | None = None) -> None:
        self.pipe = Pipe()
        self.heard: list[TerminalMessage] = []
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._answer = answer
        self._answering = False
        self.speak: Callable[[], None] = lambda: None

    def say(self, *messages: TerminalMessage, last: bool = False) -> None:
        with self.lock:
            for number, message in enumerate(messages, 1):
                # Whoever answers can't wait: it is he who would hear of room.
                while not self.pipe.writable and not self._answering:
                    assert self.changed.wait(30), "nobody reads"
                final = last and number == len(messages)
                self.pipe.write(write_message(message), last=final)
                self.speak()

    def take(self) -> None:
        while (message := self.pipe.take()) is not None:
            heard = read_message(message.payload)
            self.heard.append(heard)
            if self._answer is not None:
                self._answering = True
                self._answer(self, heard)
                self._answering = False

    def wait_for(
        self, holds: Callable[[list[TerminalMessage]], bool], timeout_s: float = PATIENCE_S
    ) -> None:
        with self.lock:
            assert self.changed.wait_for(lambda: holds(self.heard), timeout_s), self.heard[-5:]


class Connection:
    """One WebSocket, from the server's side."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self._stream = raw.makefile("rb")
        self._lock = threading.Lock()

    def send(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        if size < 126:
            head = bytes((0x80 | opcode, size))
        elif size < 65536:
            head = struct.pack("!BBH", 0x80 | opcode, 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 127, size)
        with self._lock:
            self.raw.sendall(head + payload)

    def say(self, word: dict[str, Any]) -> None:
        self.send(1, json.dumps(word).encode())

    def frame(self) -> tuple[int, bytes]:
        first, second = self._exactly(2)
        size = second & 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._exactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self._exactly(8))
        mask = self._exactly(4)
        body = self._exactly(size)
        pad = (mask * (size // 4 + 1))[:size]
        mixed = int.from_bytes(body, "big") ^ int.from_bytes(pad, "big")
        return first & 0x0F, mixed.to_bytes(size, "big")

    def _exactly(self, size: int) -> bytes:
        piece = self._stream.read(size)
        if len(piece) != size:
            raise ConnectionError
        return piece

    def close(self) -> None:
        self._stream.close()

    def cut(self) -> None:
        with suppress(OSError):
            self.raw.shutdown(socket.SHUT_RDWR)


class AttachServer:
    """`refusals` are answered, one by one, instead of a WebSocket: status and error body."""

    def __init__(self, far_end: FarEnd) -> None:
        self.far_end = far_end
        self.starts: list[dict[str, Any]] = []
        self.words: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.refusals: list[tuple[int, dict[str, Any]]] = []
        self.opened: dict[str, Any] = dict(OPENED)
        self.instead: dict[str, Any] | None = None
        """Said in place of `opened`."""
        self.mute = False
        """Pings are not answered."""
        self.connection: Connection | None = None
        self.closed: list[bytes] = []
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._connections: list[Connection] = []

    def serve(self) -> None:
        while True:
            try:
                raw, _ = self._door.accept()
            except OSError:
                return
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._guarded, args=(raw,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        for connection in self._connections:
            connection.cut()
        for thread in self._threads:
            thread.join(5)

    def _guarded(self, raw: socket.socket) -> None:
        with raw:
            connection = Connection(raw)
            self._connections.append(connection)
            try:
                with suppress(OSError, ValueError):
                    self._talk(connection)
            finally:
                connection.close()

    def _talk(self, connection: Connection) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection._exactly(1)
        lines = head.decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        self.headers.append({"request": lines[0], **headers})
        if self.refusals:
            status, error = self.refusals.pop(0)
            body = json.dumps({"error": error}).encode()
            connection.raw.sendall(
                f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            )
            return
        key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        proof = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        connection.raw.sendall(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Protocol: {headers['sec-websocket-protocol']}\r\n"
            f"Sec-WebSocket-Accept: {proof}\r\n\r\n".encode()
        )
        self._relay(connection)

    def _relay(self, connection: Connection) -> None:
        opcode, first = connection.frame()
        if opcode != 1:
            return  # it left before it said what it wants
        self.starts.append(json.loads(first))
        if self.instead is not None:
            connection.say(self.instead)
            return
        far = self.far_end

        def speak() -> None:
            for frame in far.pipe.frames():
                with suppress(OSError):
                    connection.send(2, frame)

        with far.lock:
            far.pipe.connected()
            far.speak = speak
            self.connection = connection
            connection.say(self.opened)
            speak()
            far.changed.notify_all()
        while True:
            opcode, payload = connection.frame()
            if opcode == 8:
                self.closed.append(payload)
                with suppress(OSError):
                    connection.send(8, payload)
                return
            with far.lock:
                if opcode == 9 and not self.mute:
                    connection.send(10, payload)
                elif opcode == 1:
                    self.words.append(json.loads(payload))
                elif opcode == 2:
                    far.pipe.receive(payload)
                    far.take()
                    speak()
                far.changed.notify_all()


@contextmanager
def attach_server(
    answer: Callable[[FarEnd, TerminalMessage], None] | None = None, far_end: FarEnd | None = None
) -> Iterator[AttachServer]:
    server = AttachServer(far_end or FarEnd(answer))
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(5)
