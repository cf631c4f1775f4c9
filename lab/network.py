"""The lab's network: one control namespace with a bridge, one namespace a node.

Nothing listens outside these namespaces. Links are cut with nftables on the bridge side of a
node's link, so namespace nodes and the VM node are cut the same way and can't notice how.
"""

from __future__ import annotations

import os
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from lab.addresses import CONTROL, CONTROL_SECOND, PREFIX_LENGTH
from lab.command import LabError, run
from lab.layout import Layout
from lab.namespaces import set_network_namespace

Direction = Literal["both", "from_node", "to_node"]

_NAMESPACES = Path("/run/netns")
_HOOKS: dict[Direction, tuple[str, ...]] = {
    "both": ("ingress", "egress"),
    "from_node": ("ingress",),
    "to_node": ("egress",),
}


class Network:
    """Namespaces, links, and faults on them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.control = layout.network_namespace("control")

    @property
    def control_file(self) -> Path:
        return _NAMESPACES / self.control

    def node_file(self, node: str) -> Path:
        return _NAMESPACES / self._layout.network_namespace(node)

    def create(self) -> None:
        run(["ip", "netns", "add", self.control])
        self._configure(
            self.control,
            "link set lo up",
            "link add br0 type bridge",
            f"addr add {CONTROL}/{PREFIX_LENGTH} dev br0",
            f"addr add {CONTROL_SECOND}/{PREFIX_LENGTH} dev br0",
            "link set br0 up",
        )

    def add_node(self, node: str, address: str) -> None:
        """A namespace for the node, linked to the bridge."""
        namespace = self._layout.network_namespace(node)
        run(["ip", "netns", "add", namespace])
        self._configure(
            self.control,
            f"link add {_link(node)} type veth peer name eth0 netns {namespace}",
            f"link set {_link(node)} master br0 up",
        )
        self._configure(
            namespace,
            "link set lo up",
            f"addr add {address}/{PREFIX_LENGTH} dev eth0",
            "link set eth0 up",
        )

    def add_tap(self, node: str) -> str:
        """A tap device on the bridge for a VM node; answers its name."""
        tap = _link(node)
        self._configure(
            self.control, f"tuntap add dev {tap} mode tap", f"link set {tap} master br0 up"
        )
        return tap

    def unplug(self, node: str) -> None:
        """Take the link down, as a pulled cable: what the node's kernel still sends is lost."""
        self._configure(self.control, f"link set {_link(node)} down")

    def remove_node(self, node: str) -> None:
        with suppress(LabError):  # gone with its namespace, or never made
            self.heal(node)
            self._configure(self.control, f"link del {_link(node)}")
        namespace = self._layout.network_namespace(node)
        if (_NAMESPACES / namespace).exists():
            run(["ip", "netns", "del", namespace])

    def destroy(self) -> None:
        """Remove every namespace that carries this lab's prefix, also a killed lab's."""
        if _NAMESPACES.is_dir():
            for file in _NAMESPACES.glob(f"{self._layout.network_prefix}-*"):
                run(["ip", "netns", "del", file.name])

    def _configure(self, namespace: str, *lines: str) -> None:
        run(["ip", "-n", namespace, "-batch", "-"], input="\n".join(lines) + "\n")

    def cut_off(self, node: str, direction: Direction = "both") -> None:
        """Drop the node's packets, silently, until `heal`."""
        self.heal(node)
        table, device = f"netdev cut_{node}", _link(node)
        rules = [f"add table {table}"]
        for hook in _HOOKS[direction]:
            chain = f"type filter hook {hook} device {device} priority 0; policy drop;"
            rules.append(f"add chain {table} {hook} {{ {chain} }}")
        self.nft(rules)

    def heal(self, node: str) -> None:
        self.nft([f"add table netdev cut_{node}", f"delete table netdev cut_{node}"])

    def cut_off_port(self, port: int) -> None:
        """Drop what is sent to this TCP port of the control namespace, until `heal_port`."""
        self.heal_port(port)
        table = f"inet cut_{port}"
        chain = "type filter hook input priority 0; policy accept;"
        rule = f"add rule {table} input tcp dport {port} drop"
        back = f"add rule {table} input tcp sport {port} drop"
        self.nft([f"add table {table}", f"add chain {table} input {{ {chain} }}", rule, back])

    def heal_port(self, port: int) -> None:
        self.nft([f"add table inet cut_{port}", f"delete table inet cut_{port}"])

    def nft(self, rules: list[str]) -> None:
        """Rules of nftables in the control namespace."""
        with self.entered():
            run(["nft", "-f", "-"], input="\n".join(rules) + "\n")

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and what it starts, inside the control namespace.

        A network namespace belongs to the thread: other threads of the program stay outside.
        """
        with _opened(Path("/proc/thread-self/ns/net")) as before:
            with _opened(self.control_file) as inside:
                set_network_namespace(inside)
            try:
                yield
            finally:
                set_network_namespace(before)

    def accepts(self, port: int, host: str = "127.0.0.1") -> bool:
        """Whether something accepts TCP connections there."""
        with self.entered(), suppress(OSError):
            socket.create_connection((host, port), timeout=2).close()
            return True
        return False

    def answers(self, url: str) -> bool:
        """Whether a GET of the plain HTTP address succeeds."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with self.entered(), suppress(OSError), opener.open(url, timeout=2):
            return True
        return False

    def text(self, url: str) -> str:
        """What a GET of it answers, or nothing."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with self.entered(), suppress(OSError), opener.open(url, timeout=2) as answer:
            body: bytes = answer.read()
            return body.decode(errors="replace")
        return ""


def _link(node: str) -> str:
    return f"to-{node}"


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LabError(f"there is no network {file.name}; is the lab up?") from None
    try:
        yield handle
    finally:
        os.close(handle)
