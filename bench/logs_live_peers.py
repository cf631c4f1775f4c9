"""What following is compared with: a bare relay of the same shape, `ssh tail -f`, `sattach`.

The bare relay has the same hops and the same certificates: a process on the node that reads behind
the file at the kernel's notice and sends what it read over gRPC with certificates of both ends; a
relay that passes the bytes on as a chunked HTTPS answer; a Python client that prints them. It has
no spool, no positions, no line, no sharing, no resume, and nobody is asked who may read.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from bench.logs_live_jobs import NODE, OWNER, Bench, Job
from lab.addresses import CONTROL
from lab.certificates import SERVER_NAMES, Authority
from lab.files import give
from lattice.wire.carriers import EOF, STREAM_OPTIONS

_GRPC_PORT, _HTTP_PORT, _SSH_PORT = 28990, 28991, 28992
"""Below those that Linux gives to outgoing connections."""
_METHOD = "/bare.Tail/Node"
_IN_MODIFY = 2
_READ = 60 * 1024
_CHECKOUT = Path(__file__).parents[1]


# The bare relay's three processes.


async def node(folder: str, file: str) -> None:
    """Tail a file, by inotify and from its end, into one stream."""
    loop = asyncio.get_running_loop()
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(watch, file.encode(), _IN_MODIFY)
    changed = asyncio.Event()
    loop.add_reader(watch, changed.set)
    descriptor = os.open(file, os.O_RDONLY)
    os.lseek(descriptor, 0, os.SEEK_END)
    credentials = grpc.ssl_channel_credentials(*_pem(folder))
    options = list(STREAM_OPTIONS)
    async with aio.secure_channel(f"{CONTROL}:{_GRPC_PORT}", credentials, options) as channel:
        dial: Any = channel.stream_stream
        call = dial(_METHOD)()
        while True:
            await changed.wait()
            changed.clear()
            with suppress(BlockingIOError):
                os.read(watch, 65536)
            with suppress(asyncio.InvalidStateError):
                while text := os.read(descriptor, _READ):
                    await call.write(text)


async def relay(folder: str) -> None:
    """From the node's stream to whoever has asked over HTTPS."""
    viewers: set[asyncio.StreamWriter] = set()

    async def from_node(_requests: Any, context: Any) -> None:
        while (message := await context.read()) is not EOF:
            for each in viewers:
                each.write(b"%x\r\n%s\r\n" % (len(message), message))
            for each in tuple(viewers):
                await each.drain()

    async def viewer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        viewers.add(writer)
        with suppress(ConnectionError):
            await reader.read()
        viewers.discard(writer)

    ca, key, certificate = _pem(folder)
    server = aio.server(options=list(STREAM_OPTIONS))
    handler = {"Node": grpc.stream_stream_rpc_method_handler(from_node)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Tail", handler),))
    credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
    server.add_secure_port(f"{CONTROL}:{_GRPC_PORT}", credentials)
    await server.start()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(f"{folder}/bare.crt", f"{folder}/bare.key")
    async with await asyncio.start_server(viewer, CONTROL, _HTTP_PORT, ssl=context) as listening:
        await listening.serve_forever()


async def client(folder: str) -> None:
    """Print what comes."""
    import http.client  # noqa: PLC0415 - the other roles do without

    context = ssl.create_default_context(cafile=f"{folder}/ca.crt")
    connection = http.client.HTTPSConnection(CONTROL, _HTTP_PORT, context=context)
    connection.request("GET", "/")
    answer = connection.getresponse()
    # The relay is ended under it.
    with suppress(http.client.HTTPException, ConnectionError):
        while text := answer.read1(65536):
            os.write(1, text)


def _pem(folder: str) -> tuple[bytes, bytes, bytes]:
    names = ("ca.crt", "bare.key", "bare.crt")
    ca, key, certificate = ((Path(folder) / each).read_bytes() for each in names)
    return ca, key, certificate


@dataclass(frozen=True, slots=True)
class BareRelay:
    """Its three processes; the client prints."""

    node: subprocess.Popen[str]
    relay: subprocess.Popen[str]
    client: subprocess.Popen[str]


@contextmanager
def bare_relay(bench: Bench, job: Job) -> Iterator[BareRelay]:
    """Node and relay at work, and the client that prints."""
    folder = bench.lab.layout.certificates
    Authority.load(folder).issue("bare", "bare", names=SERVER_NAMES, owner="root")
    room = bench.lab.control.room
    begin = [sys.executable, "-m", "bench.logs_live_peers"]
    path = {"PYTHONPATH": str(_CHECKOUT)}
    env = {**room.environment, **path}
    started = [room.popen([*begin, "relay", str(folder)], env=path, stderr=None)]
    try:
        until_listening(bench, _HTTP_PORT)
        on_node = bench.lab.node(NODE).argv([*begin, "node", str(folder), str(job.file)])
        started.append(subprocess.Popen(on_node, env=env, stdout=subprocess.DEVNULL, text=True))
        started.append(room.popen([*begin, "client", str(folder)], env=path, stderr=None))
        relay, node, client = started
        yield BareRelay(node=node, relay=relay, client=client)
    finally:
        end_peers(bench, started, "bench.logs_live_peers")


def end_peers(bench: Bench, started: list[subprocess.Popen[str]], mark: str) -> None:
    """All of them, and what they have begun on nodes: their command lines hold the mark."""
    # A process on a node is the child of the one that entered its namespaces.
    for each in started:
        each.kill()
        each.communicate()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = entry.read_bytes()
            ours = str(bench.lab.layout.state).encode()
            if mark.encode() in words and ours in words:
                os.kill(int(entry.parent.name), 9)


# ssh.


class Ssh:
    """An sshd on the node, and a key that opens it for the owner."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.pid = 0
        """The daemon's, or that of the process which entered the node for it."""
        self._folder = bench.lab.layout.state / "bench-ssh"
        self._folder.mkdir(mode=0o755, exist_ok=True)
        for name in ("host", "user"):
            key = self._folder / name
            if not key.exists():
                make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
                subprocess.run(make, check=True)
        (self._folder / "authorized").write_text((self._folder / "user.pub").read_text())
        (self._folder / "sshd_config").write_text(
            f"Port {_SSH_PORT}\nHostKey {self._folder}/host\nPidFile none\nStrictModes no\n"
            f"AuthorizedKeysFile {self._folder}/authorized\nUsePAM yes\nUseDNS no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPrintMotd no\n"
        )
        home_key = bench.seen_from_here(f"/home/{OWNER}/bench-key")
        home_key.unlink(missing_ok=True)
        home_key.touch(mode=0o600)
        home_key.write_text((self._folder / "user").read_text())
        give(home_key, OWNER)

    @contextmanager
    def serving(self) -> Iterator[Ssh]:
        """While the context lasts."""
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        words = ["/usr/sbin/sshd", "-D", "-e", "-f", str(self._folder / "sshd_config")]
        log = (self._folder / "log").open("w")
        argv = self._bench.lab.node(NODE).argv(words)
        environment = dict(self._bench.lab.control.room.environment)
        daemon = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, text=True)
        self.pid = daemon.pid
        try:
            until_listening(self._bench, _SSH_PORT, self._bench.lab.node(NODE).address)
            yield self
        finally:
            end_peers(self._bench, [daemon], "sshd_config")

    def tail(self, job: Job, begin: str) -> subprocess.Popen[str]:
        """`tail -f` on the node, over ssh; `begin` as `tail -n` has it."""
        words = ("exec", "tail", "-n", begin, "-f", str(job.file))
        return self._bench.lab.popen_as(OWNER, [*self.argv(), *words])

    def argv(self, *flags: str) -> list[str]:
        """ssh to the node, as the owner."""
        options = (
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "BatchMode=yes",
        )
        address = self._bench.lab.node(NODE).address
        return [
            *("ssh", *flags, "-i", f"/home/{OWNER}/bench-key", "-p", str(_SSH_PORT)),
            *(word for each in options for word in ("-o", each)),
            f"{OWNER}@{address}",
        ]


def sattach(bench: Bench, job: Job) -> subprocess.Popen[str]:
    """Slurm's own way, of a step that srun began."""
    return bench.lab.popen_as(OWNER, ["sattach", f"{job.id}.0"])


def until_listening(bench: Bench, port: int, host: str = CONTROL) -> None:
    """Somebody answers there."""
    deadline = time.monotonic() + 30
    while not bench.lab.network.accepts(port, host):
        if time.monotonic() > deadline:
            raise AssertionError(f"nothing listens at {host}:{port}")
        time.sleep(0.1)


if __name__ == "__main__":
    roles: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "node": node,
        "relay": relay,
        "client": client,
    }
    asyncio.run(roles[sys.argv[1]](*sys.argv[2:]))
