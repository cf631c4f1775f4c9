"""The rules of `identity` and of the agents' listener, each with its words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lattice.adapters.pki.files import IdentityPaths, create_identity
from lattice.base.clock import SystemClock
from lattice.server.config.load import Checked, check_server_config
from tests.fakes.certificates import authority_files
from tests.fakes.spire import SpiffeAuthority

ALL = "identity: {{ca_cert: ca.crt, ca_key: ca.key, grant_key: grant.key{more}}}\n"
LOOPBACK = "127.0.0.1:50052"


class Room:
    """A folder with a whole identity and a file that may name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        paths = IdentityPaths(folder / "ca.crt", folder / "ca.key", folder / "grant.key")
        create_identity(paths, SystemClock(), name="alpha")

    def check(self, text: str, api: str = f"agent_listen: '{LOOPBACK}'") -> Checked:
        file = self.folder / "server.yaml"
        slurm = "slurm: {rest_url: 'unix:/run/slurmrestd.socket'}\n"
        file.write_text(f"{slurm}api: {{{api}}}\n{text}")
        return check_server_config(file, {})

    def problems(self, text: str, api: str = f"agent_listen: '{LOOPBACK}'") -> list[str]:
        found = self.check(text, api).problems
        return [re.sub(r"^\S*/server\.yaml(:\d+)?: ", "", each) for each in found]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_a_whole_identity_is_fine_and_so_is_none(room: Room) -> None:
    assert room.problems(ALL.format(more="")) == []
    assert room.problems("") == []


@pytest.mark.spec("OPS-7")
def test_what_belongs_together_is_asked_for_together(room: Room) -> None:
    found = room.problems("identity: {ca_cert: ca.crt}\n")
    assert found == [
        "identity.ca_cert: needs identity.ca_key too",
        "identity.ca_cert: needs identity.grant_key too",
    ]


@pytest.mark.spec("OPS-7")
def test_files_that_are_not_what_they_should_be_are_named(room: Room) -> None:
    (room.folder / "grant.key").write_text("nothing")
    (room.folder / "old.pub").write_text("nothing")
    other = authority_files(room.folder, "other", name="other")
    more = f", trust: {other.certificate}, previous_grant_keys: [old.pub, absent.pub]"
    found = "\n".join(room.problems(ALL.format(more=more)))
    assert re.search(r"identity\.trust: \S+ holds an authority of other, not of alpha-", found)
    assert re.search(r"identity\.grant_key: \S+ holds no Ed25519 key", found)
    assert re.search(r"previous_grant_keys\[0\]: \S+ holds no Ed25519 key", found)
    assert re.search(r"previous_grant_keys\[1\]: \S+: No such file", found)
    (room.folder / "ca.key").write_bytes(other.key.read_bytes())
    assert any("not that of the certificate" in each for each in room.problems(ALL.format(more="")))


def test_a_key_before_may_be_given_by_either_half(room: Room) -> None:
    assert room.problems(ALL.format(more=", previous_grant_keys: [grant.key]")) == []


@pytest.mark.spec("OPS-7")
def test_nodes_must_be_told_where_to_dial(room: Room) -> None:
    text = ALL.format(more="")
    assert room.problems(text, "agent_listen: '0.0.0.0:50052'") == [
        "api.agent_advertise: is needed: no node can dial 0.0.0.0:50052"
    ]
    good = "agent_listen: '0.0.0.0:50052', agent_advertise: 's1.example:50052'"
    assert room.problems(text, good) == []
    bad = "agent_listen: '0.0.0.0:50052', agent_advertise: '[::]:50052'"
    assert room.problems(text, bad) == ["api.agent_advertise: [::]:50052 can't be dialled"]
    alone = "agent_listen: '0.0.0.0:50052', agent_advertise: 'localhost:50052'"
    refused = (
        "api.agent_advertise: localhost:50052 is this machine alone: name the address that nodes "
        "reach it by"
    )
    assert room.problems(text, alone) == [refused]
    both = "agent_listen: '127.0.0.1:50052', agent_advertise: '127.0.0.1:50052'"
    assert room.problems(text, both) == []
    assert room.problems("", "agent_listen: '0.0.0.0:50052'") == []


@pytest.mark.spec("OPS-7")
def test_agents_have_a_listener_of_their_own(room: Room) -> None:
    found = room.problems(ALL.format(more=""), "agent_listen: '127.0.0.1:50051'")
    assert found == [
        "api.agent_listen: is the same as api.grpc_listen: agents have a listener of their own"
    ]


@pytest.mark.spec("AUTH-9", "OPS-7")
@pytest.mark.threat("development-token")
def test_the_token_of_development_stays_on_loopback_and_is_always_worth_a_word(
    room: Room,
) -> None:
    text = ALL.format(more=f", development_token: {'x' * 32}")
    checked = room.check(text)
    assert checked.problems == ()
    assert any("development_token: is for development" in each for each in checked.warnings)
    outside = "agent_listen: '10.0.0.1:50052'"
    assert any("not while agents are served on 10.0.0.1" in e for e in room.problems(text, outside))
    short = ALL.format(more=", development_token: abc")
    assert any("at least 32 bytes" in each for each in room.problems(short))


class TestSpiffe:
    """The rules of `api.spiffe`."""

    def problems(self, room: Room, spiffe: str, more: str = "") -> list[str]:
        api = f"agent_listen: '{LOOPBACK}', spiffe: {{{spiffe}}}"
        return room.problems(ALL.format(more=more), api)

    @pytest.mark.spec("AUTH-9", "OPS-7")
    def test_a_domain_with_its_bundle_is_fine(self, room: Room) -> None:
        (room.folder / "bundle.pem").write_bytes(SpiffeAuthority().bundle_pem)
        bundle = room.folder / "bundle.pem"
        assert self.problems(room, f"trust_domain: example.org, bundle: {bundle}") == []
        assert self.problems(room, "trust_domain: example.org, socket: /run/spire.sock") == []

    @pytest.mark.spec("AUTH-9", "OPS-7")
    def test_what_belongs_together_is_asked_for_together(self, room: Room) -> None:
        assert self.problems(room, "bundle: b.pem") == [
            "api.spiffe.bundle: needs api.spiffe.trust_domain too"
        ]
        one = "api.spiffe.trust_domain: needs api.spiffe.bundle or api.spiffe.socket, one of them"
        assert self.problems(room, "trust_domain: example.org") == [one]
        api = f"agent_listen: '{LOOPBACK}', spiffe: {{trust_domain: a.org, socket: /run/s}}"
        assert room.problems("", api) == ["api.spiffe.trust_domain: needs identity.ca_cert too"]

    @pytest.mark.spec("AUTH-9", "OPS-7")
    def test_what_is_no_part_of_spiffe_is_named(self, room: Room) -> None:
        socket = "socket: /run/spire.sock"
        [found] = self.problems(room, f"trust_domain: Example.org, {socket}")
        assert found.startswith("api.spiffe.trust_domain: 'Example.org' is no trust domain")
        [found] = self.problems(room, f"trust_domain: a.org, path: /all, {socket}")
        assert found == "api.spiffe.path: '/all' must have {node} once"
        [found] = self.problems(room, "trust_domain: a.org, socket: 'tcp://10.0.0.1:80'")
        assert found.endswith("is not loopback: keys would cross the network in plain text")
        leaf = room.folder / "leaf.pem"
        leaf.write_bytes(SpiffeAuthority().node("n1").leaf_pem)
        [found] = self.problems(room, f"trust_domain: a.org, bundle: {leaf}")
        assert found.endswith("leaf.pem holds a certificate that is no authority's")
        leaf.write_text("nothing")
        [found] = self.problems(room, f"trust_domain: a.org, bundle: {leaf}")
        assert found.endswith("leaf.pem holds no certificates")

    @pytest.mark.threat("spiffe-authority")
    def test_a_socket_that_any_user_could_make_is_warned_of(self, room: Room) -> None:
        spiffe = "trust_domain: a.org, socket: 'unix:///tmp/spire/api.sock'"
        found = room.check(ALL.format(more=""), f"agent_listen: '{LOOPBACK}', spiffe: {{{spiffe}}}")
        assert any("/tmp is open to everybody" in each for each in found.warnings)
