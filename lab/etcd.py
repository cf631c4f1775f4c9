"""Three etcd members on loopback; clients and peers both need a certificate.

`--listen-metrics-urls` opens a plain-text door for /health only, so that a probe needs none.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from lab.addresses import ETCD_CLIENT_PORTS, ETCD_HEALTH_PORTS, ETCD_PEER_PORTS
from lab.certificates import Authority, Leaf
from lab.cgroup import ControlGroup, Hierarchies
from lab.files import give
from lab.layout import Layout
from lab.network import Network
from lab.process import Process
from lab.room import Room
from lab.users import SERVER_USER

_USER = "etcd"
_LOOPBACK = ("127.0.0.1", "localhost")


class Etcd:
    """`members` are the handles; `client` is a certificate that etcd takes."""

    name = "etcd"

    def __init__(self, layout: Layout, room: Room, network: Network) -> None:
        self._folder = layout.state / "etcd"
        self._certificates = layout.certificates
        self._network = network
        self._groups = [
            ControlGroup(
                Hierarchies.of_host(), f"{layout.cgroup('control')}/etcd-{place}", everywhere=False
            )
            for place in (1, 2, 3)
        ]
        self.endpoints = [f"https://127.0.0.1:{port}" for port in ETCD_CLIENT_PORTS]
        self._rooms = [replace(room, group=group) for group in self._groups]
        self._layout = layout
        self.members = [self._member(number) for number in range(len(self._rooms))]

    @property
    def processes(self) -> list[Process]:
        return self.members

    @property
    def client(self) -> Leaf:
        """For lattice-server; its key is readable by that account only."""
        return Authority.load(self._certificates).leaf("etcd-client")

    def _member(self, number: int, *, joins: bool = False) -> Process:
        """`joins`: it comes into a cluster that exists."""
        name = f"etcd-{number + 1}"
        peers = [f"https://127.0.0.1:{port}" for port in ETCD_PEER_PORTS]
        cluster = ",".join(f"etcd-{place}={peer}" for place, peer in enumerate(peers, 1))
        client, health = self.endpoints[number], ETCD_HEALTH_PORTS[number]
        state = "existing" if joins else "new"
        argv = [
            *("/usr/bin/etcd", "--name", name, "--data-dir", str(self._folder / name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers[number]),
            *("--initial-advertise-peer-urls", peers[number]),
            *("--initial-cluster", cluster, "--initial-cluster-state", state),
            *("--listen-metrics-urls", f"http://127.0.0.1:{health}"),
            *("--heartbeat-interval", "50", "--election-timeout", "500"),
            *("--logger", "zap", "--log-level", "warn"),
            *_tls("", self._certificates / "etcd-server", self._certificates / "ca.crt"),
            *_tls("peer-", self._certificates / "etcd-peer", self._certificates / "ca.crt"),
        ]
        return Process(
            name,
            argv,
            self._layout,
            self._rooms[number],
            user=_USER,
            probe=lambda: self._network.answers(f"http://127.0.0.1:{health}/health"),
        )

    def prepare(self, authority: Authority) -> None:
        """Certificates and data folders, before the members start."""
        authority.issue("etcd-server", "etcd-server", names=_LOOPBACK, owner=_USER)
        authority.issue("etcd-peer", "etcd-peer", names=_LOOPBACK, owner=_USER)
        authority.issue("etcd-client", "lattice-server", owner=SERVER_USER)
        self._folder.mkdir(exist_ok=True)
        give(self._folder, _USER)

    def up(self) -> None:
        for group in self._groups:
            group.create()
        for member in self.members:  # the first alone never gets healthy: it waits for a quorum
            member.start()
        for member in self.members:
            member.wait_healthy()

    def down(self) -> None:
        for member in self.members:
            member.kill()

    def leader(self) -> int | None:
        """Which member leads, by its own account."""
        for number, port in enumerate(ETCD_HEALTH_PORTS):
            if "etcd_server_is_leader 1" in self._network.text(f"http://127.0.0.1:{port}/metrics"):
                return number
        return None

    def cut_off_peers(self, number: int) -> None:
        """Drop what the member and its peers send each other; its clients still reach it."""
        self.heal_peers(number)
        table, ports = f"inet cut_peers_{number}", ", ".join(map(str, ETCD_PEER_PORTS))
        own = self._groups[number].in_nftables
        rules = [f"add table {table}"]
        for hook in ("input", "output"):
            chain = f"type filter hook {hook} priority 0; policy accept;"
            rules.append(f"add chain {table} {hook} {{ {chain} }}")
            rules += [
                f"add rule {table} {hook} {own} tcp {end} {{ {ports} }} drop"
                for end in ("sport", "dport")
            ]
        self._network.nft(rules)

    def heal_peers(self, number: int) -> None:
        table = f"inet cut_peers_{number}"
        self._network.nft([f"add table {table}", f"delete table {table}"])

    def ctl(self, *words: str) -> str:
        """What etcdctl prints, asked with the certificate of the servers."""
        client = self.client
        argv = [
            *("env", "ETCDCTL_API=3", "/usr/bin/etcdctl"),
            f"--endpoints={','.join(self.endpoints)}",
            f"--cacert={client.authority}",
            f"--cert={client.certificate}",
            f"--key={client.key}",
            *words,
        ]
        return self._rooms[0].run(argv).stdout

    def replace(self, number: int) -> None:
        """Put a new member with an empty disk into the place of a dead one."""
        name, peer = f"etcd-{number + 1}", f"https://127.0.0.1:{ETCD_PEER_PORTS[number]}"
        listed = self.ctl("member", "list")
        old = next(line.split(",")[0] for line in listed.splitlines() if f" {name}," in line)
        self.ctl("member", "remove", old)
        self.ctl("member", "add", name, f"--peer-urls={peer}")
        self.members[number] = self._member(number, joins=True)
        self.members[number].start()
        self.members[number].wait_healthy()

    def wipe(self, number: int) -> None:
        """Remove a stopped member's data, as a lost disk would."""
        shutil.rmtree(self._folder / f"etcd-{number + 1}")


def _tls(kind: str, stem: Path, authority: Path) -> list[str]:
    return [
        *(f"--{kind}cert-file", f"{stem}.crt", f"--{kind}key-file", f"{stem}.key"),
        *(f"--{kind}trusted-ca-file", str(authority), f"--{kind}client-cert-auth"),
    ]
