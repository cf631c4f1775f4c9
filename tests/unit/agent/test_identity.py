"""A node's identity: which step gives it, how it is kept, and how it is renewed in time."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lattice.access.grants import GrantChecker, GrantSigner
from lattice.adapters.pki.authority import ClusterAuthority
from lattice.agent.certificates import LocalCertificates
from lattice.agent.config import AgentSettings
from lattice.agent.identity import AgentIdentity
from lattice.agent.identity_cascade import Cascade, NoIdentity
from lattice.agent.identity_store import (
    IdentityRefused,
    IdentityStore,
    StoredIdentity,
)
from lattice.agent.sections import AgentConfig, BootstrapSection
from lattice.base.errors import LatticeError, PermissionRefused, Unavailable
from lattice.base.signatures import SigningKey
from lattice.domain.grant import Act, BadGrant
from lattice.features.agents.model import Credentials
from tests.fakes.certificates import CLUSTER, node_pair
from tests.fakes.manual_clock import ManualClock

HOUR = 3600.0


class FakeIssuer:
    """Signs as a server would; refuses what it is told to."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.authority = ClusterAuthority.create(CLUSTER, clock)
        self.tokens = {"good"}
        self.refusal: LatticeError | None = None
        self.asked: list[str] = []
        self.grant_keys: tuple[str, ...] = ()
        self.csrs: list[str] = []

    def credentials(self, node: str, csr: str, life: timedelta = timedelta(days=1)) -> Credentials:
        self.csrs.append(csr)
        issued = self.authority.sign_node(csr.encode(), node, life)
        return Credentials(
            cluster=CLUSTER,
            node=node,
            certificate=issued.pem.decode(),
            authorities=self.authority.bundle.decode(),
            grant_keys=self.grant_keys,
            replicas=("10.0.0.1:50052",),
            not_after=issued.not_after,
        )

    async def enrol(self, token: str, node: str, csr: str) -> Credentials:
        self.asked.append("enrol")
        if isinstance(self.refusal, Unavailable):
            raise self.refusal
        if token not in self.tokens:
            raise PermissionRefused("The enrolment token is not accepted.")
        self.tokens.discard(token)
        return self.credentials(node, csr)

    async def renew(
        self, identity: StoredIdentity, replicas: Sequence[str], csr: str
    ) -> Credentials:
        self.asked.append(f"renew at {','.join(replicas)}")
        if self.refusal is not None:
            raise self.refusal
        return self.credentials(identity.peer.name, csr)


def settings_of(node: str, state_dir: Path, **named: Any) -> AgentSettings:
    """As the agent loads them; `bootstrap_…` and the token's file stand in the file."""
    begin = "bootstrap_"
    files = {name.removeprefix(begin): named.pop(name) for name in [*named] if begin in name}
    token_file = named.pop("enrol_token_file", None)
    config = AgentConfig(
        state_dir=state_dir, bootstrap=BootstrapSection(**files), enrol_token_file=token_file
    )
    return AgentSettings(config, node, (), (), **named)


class Node:
    """A node with its folder, a server that signs, and time that moves when it sleeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.issuer = FakeIssuer(self.clock)
        self.store = IdentityStore(folder / "state", "n1", LocalCertificates())
        self.slept: list[float] = []
        self.until_s = 0.0

    def identity(self, checker: GrantChecker | None = None, **named: object) -> AgentIdentity:
        settings = settings_of("n1", self.folder / "state", **named)
        cascade = Cascade(settings, self.store, self.issuer, self.clock)  # type: ignore[arg-type]
        return AgentIdentity(
            cascade,
            self.store,
            self.issuer,  # type: ignore[arg-type]
            self.clock,
            checker=checker,
            replicas=("10.0.0.9:50052",),
            sleep=self.sleep,
            chance=lambda: 0.5,
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.advance(seconds)
        self.until_s -= seconds
        if self.until_s <= 0:
            raise asyncio.CancelledError

    async def run(self, identity: AgentIdentity, seconds: float) -> None:
        self.until_s = seconds
        with pytest.raises(asyncio.CancelledError):
            await identity.run()

    def bootstrap_files(self, name: str = "n1", life_h: int = 24) -> dict[str, object]:
        pair = node_pair(self.issuer.authority, name, timedelta(hours=life_h))
        files = {"cert": pair.certificate, "key": pair.key, "ca": self.issuer.authority.bundle}
        for each, content in files.items():
            (self.folder / each).write_bytes(content)
        return {f"bootstrap_{each}": self.folder / each for each in files}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.spec("AUTH-9")
async def test_a_token_gives_the_first_and_the_file_every_later_one(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = node.identity(enrol_token="good")
    await first.obtain()
    assert first.held.origin == "enrolment token"
    found = next(each for each in caplog.records if each.message == "identity found")
    assert found.step == "enrolment token"  # type: ignore[attr-defined]
    assert found.not_before_it == [  # type: ignore[attr-defined]
        "SPIRE: no SPIRE socket",
        f"own certificate: none in {node.store.path.parent}",
    ]
    again = node.identity(enrol_token="good")
    await again.obtain()
    assert again.held.origin == "own certificate"
    assert again.held.certificate == first.held.certificate
    assert node.issuer.asked == ["enrol"]
    assert again.replicas == ("10.0.0.1:50052", "10.0.0.9:50052")


async def test_a_token_may_stand_in_a_file(node: Node) -> None:
    (node.folder / "token").write_text("good\n")
    identity = node.identity(enrol_token_file=node.folder / "token")
    await identity.obtain()
    assert identity.held.peer.name == "n1"


@pytest.mark.spec("AUTH-9")
async def test_a_folder_that_can_t_be_written_costs_no_token(node: Node) -> None:
    node.store.path.parent.parent.mkdir(parents=True, exist_ok=True)
    node.store.path.parent.write_text("a file stands where the folder should be")
    identity = node.identity(enrol_token="good")
    with pytest.raises(NoIdentity) as refusal:
        await identity.obtain()
    told = "\n".join(refusal.value.problems)
    assert f"the state folder {node.store.path.parent} can't be written" in told
    assert "No token was used" in told
    assert node.issuer.asked == []
    assert node.issuer.tokens == {"good"}


async def test_a_server_that_stays_away_is_one_line_in_the_log(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.issuer.refusal = Unavailable("s1: connection refused", hint="Check the port.")
    identity = node.identity(enrol_token="good")
    node.until_s = HOUR
    obtaining = asyncio.ensure_future(identity.obtain())
    while len(node.issuer.asked) < 5 and not obtaining.done():
        await asyncio.sleep(0)
    node.issuer.refusal = None
    await obtaining
    [line] = [each for each in caplog.records if each.message == "no identity yet"]
    assert line.reason == "No identity yet: s1: connection refused"  # type: ignore[attr-defined]
    assert line.hint == "Check the port."  # type: ignore[attr-defined]


@pytest.mark.spec("AUTH-9")
async def test_the_key_stays_here_in_a_file_of_ones_own(node: Node) -> None:
    identity = node.identity(enrol_token="good")
    await identity.obtain()
    assert node.store.path.stat().st_mode & 0o777 == 0o600
    assert node.store.path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in node.store.path.parent.iterdir()] == ["identity.json"]
    assert "PRIVATE" not in node.issuer.csrs[0]
    assert "PRIVATE" not in repr(identity.held)


@pytest.mark.spec("AUTH-9")
async def test_bootstrap_files_are_used_as_they_are_and_then_exchanged(node: Node) -> None:
    identity = node.identity(**node.bootstrap_files())
    await identity.obtain()
    assert identity.held.origin == "bootstrap files"
    identity.learned(["10.0.0.2:50052"])
    assert node.store.load() is None, "an agent that starts again here would never have its own"
    await node.run(identity, 60)
    assert identity.held.origin == "renewal"
    assert node.issuer.asked == ["renew at 10.0.0.2:50052,10.0.0.9:50052"]
    kept = node.store.load()
    assert kept is not None
    assert kept.certificate == identity.held.certificate


@pytest.mark.spec("AUTH-9")
async def test_the_token_of_development_comes_last(node: Node) -> None:
    node.issuer.tokens = {"dev"}
    identity = node.identity(enrol_token="spent", agent_token="dev", **node.bootstrap_files("n2"))
    await identity.obtain()
    assert identity.held.origin == "development token"


@pytest.mark.spec("AUTH-9")
async def test_without_any_each_step_says_why(node: Node) -> None:
    with pytest.raises(NoIdentity) as none:
        await node.identity(enrol_token="spent", **node.bootstrap_files("n2")).obtain()
    assert none.value.problems == (
        "SPIRE: no SPIRE socket",
        f"own certificate: none in {node.store.path.parent}",
        "enrolment token: The enrolment token is not accepted.",
        "bootstrap files: the certificate is that of node n2, not of n1",
        "development token: LATTICE_AGENT_TOKEN is not set",
    )
    assert none.value.hint == "admin: lattice admin enrol n1"


async def test_a_server_that_does_not_answer_is_waited_for(node: Node) -> None:
    node.issuer.refusal = Unavailable("away")
    node.until_s = 10_000.0
    obtaining = node.identity(enrol_token="good").obtain()
    with pytest.raises(asyncio.CancelledError):
        await obtaining
    assert node.slept[:4] == [3.0, 6.0, 12.0, 24.0]
    assert max(node.slept) == 450.0


@pytest.mark.spec("AUTH-9")
async def test_renewal_comes_at_two_thirds_with_a_new_key(node: Node) -> None:
    identity = node.identity(enrol_token="good")
    await identity.obtain()
    first = identity.held
    changed = asyncio.ensure_future(identity.wait_changed())
    await asyncio.sleep(0)
    await node.run(identity, 14.5 * HOUR)
    assert identity.held == first
    await node.run(identity, 1.5 * HOUR)
    assert identity.held.key != first.key
    assert identity.held.peer.not_after > first.peer.not_after
    assert identity.generation == 2
    await asyncio.wait_for(changed, 60)
    await node.run(identity, 10 * 24 * HOUR)
    assert identity.held.peer.not_after > node.clock.now()


@pytest.mark.spec("AUTH-9")
async def test_a_failed_renewal_is_tried_again_until_it_works(node: Node) -> None:
    identity = node.identity(enrol_token="good")
    await identity.obtain()
    node.issuer.refusal = Unavailable("away")
    await node.run(identity, 20 * HOUR)
    assert identity.generation == 1
    assert max(node.slept) <= 450.0
    node.issuer.refusal = None
    await node.run(identity, 10 * 60)
    assert identity.generation == 2


@pytest.mark.spec("AUTH-9")
async def test_an_expired_one_says_what_to_do_and_takes_a_new_token(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    token = node.folder / "token"
    token.write_text("good")
    identity = node.identity(enrol_token_file=token)
    await identity.obtain()
    node.issuer.refusal = Unavailable("away")
    node.clock.advance(26 * HOUR)
    await node.run(identity, 60)
    assert "node certificate expired 2 h ago; admin: lattice admin enrol n1" in caplog.text
    with pytest.raises(Unavailable):
        await identity._cascade.obtain()
    node.issuer.refusal = None
    node.issuer.tokens = {"fresh"}
    token.write_text("fresh")
    await node.run(identity, 600)
    assert identity.held.origin == "enrolment token"
    assert identity.held.peer.not_after > node.clock.now()


@pytest.mark.spec("AUTH-9")
async def test_one_that_is_refused_asks_again_with_a_new_token(node: Node) -> None:
    token = node.folder / "token"
    token.write_text("good")
    identity = node.identity(enrol_token_file=token, **node.bootstrap_files())
    await identity.obtain()
    node.issuer.refusal = PermissionRefused("node certificate revoked")
    identity.doubt()
    await node.run(identity, 60)
    assert identity.generation == 1, "files on disk are no answer to a revocation"
    node.issuer.tokens = {"fresh"}
    token.write_text("fresh")
    await node.run(identity, 600)
    assert identity.generation == 2
    assert identity.held.origin == "enrolment token"


@pytest.mark.spec("AUTH-9")
async def test_a_changed_file_is_taken_up_and_a_bad_one_is_not(node: Node) -> None:
    identity = node.identity(enrol_token="good")
    await identity.obtain()
    key, csr = node.store.new_request()
    other = node.store.held(node.issuer.credentials("n1", csr), key, "elsewhere")
    node.store.save(other)
    await node.run(identity, 60)
    assert identity.held.certificate == other.certificate
    node.store.path.write_text("{}")
    assert not await identity.reload()
    node.store.path.unlink()
    assert not await identity.reload()
    assert identity.held.certificate == other.certificate


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("replica-certificate")
async def test_a_link_tells_of_replicas_and_never_of_keys(node: Node) -> None:
    signer = GrantSigner(SigningKey.generate(), node.clock)
    node.issuer.grant_keys = (signer.public_keys[0].hex(),)
    checker = GrantChecker("n1", node.clock)
    identity = node.identity(checker, enrol_token="good")
    assert not await identity.reload(), "there is nothing yet to read again"
    await identity.obtain()
    identity.learned(["10.0.0.2:50052"])
    assert identity.replicas == ("10.0.0.2:50052", "10.0.0.9:50052")
    assert identity.generation == 1, "no connection need be made anew"
    assert checker.check(signer.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)
    identity.learned(())
    assert identity.replicas[0] == "10.0.0.2:50052"
    again = node.identity()
    await again.obtain()
    assert again.held.grant_keys == signer.public_keys


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("replica-certificate")
async def test_a_renewal_that_the_clusters_authority_did_not_sign_is_refused(node: Node) -> None:
    """Whoever holds a replica's certificate alone can answer, and can't say what is believed."""
    checker = GrantChecker("n1", node.clock)
    identity = node.identity(checker, enrol_token="good")
    await identity.obtain()
    before = identity.held
    stranger = GrantSigner(SigningKey.generate(), node.clock)
    node.issuer.authority = ClusterAuthority.create(CLUSTER, node.clock)
    node.issuer.grant_keys = (stranger.public_keys[0].hex(),)
    identity.doubt()
    await node.run(identity, 60)
    assert node.issuer.asked[-1].startswith("renew")
    assert identity.held == before
    with pytest.raises(BadGrant):
        checker.check(stranger.issue(Act.ECHO, "n1", subject="s"), Act.ECHO)


async def _kept(node: Node) -> None:
    await node.identity(enrol_token="good").obtain()


@pytest.mark.spec("AUTH-9")
async def test_a_kept_file_that_can_not_be_believed_is_refused(node: Node) -> None:
    await _kept(node)
    whole = json.loads(node.store.path.read_text())
    spoils = {
        "can't be read": {**whole, "certificate": 7},
        "not of n1": {
            **whole,
            "certificate": node_pair(node.issuer.authority, "n2").certificate.decode(),
        },
        "not that of the certificate": {**whole, "key": node.store.new_request()[0]},
        "authorities can't be read": {**whole, "authorities": "nothing"},
    }
    for words, spoiled in spoils.items():
        node.store.path.write_text(json.dumps(spoiled))
        with pytest.raises(IdentityRefused, match=words):
            node.store.load()
    node.store.path.write_text(json.dumps(whole))
    node.store.path.chmod(0o640)
    with pytest.raises(IdentityRefused, match="open to others"):
        node.store.load()
    node.store.path.unlink()
    node.store.path.symlink_to("/dev/null")
    with pytest.raises(IdentityRefused):
        node.store.load()


@pytest.mark.spec("AUTH-9")
async def test_a_certificate_that_is_not_on_disk_is_not_used(node: Node) -> None:
    identity = node.identity(enrol_token="good")
    await identity.obtain()
    kept, node.store.path = node.store.path, node.folder / "cert" / "below"
    (node.folder / "cert").write_text("a file")
    first = identity.held
    await node.run(identity, 17 * HOUR)
    assert any(each.startswith("renew") for each in node.issuer.asked)
    assert identity.held == first, "its use would spend the one that a restart finds"
    node.store.path = kept
    await node.run(identity, 10 * 60)
    assert identity.generation == 2
    assert _certificate_on_disk(node) == identity.held.certificate


@pytest.mark.spec("AUTH-9")
async def test_the_file_and_its_folder_are_synced_before_a_certificate_is_used(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = node.identity(enrol_token="good")
    await identity.obtain()
    synced: list[tuple[bool, str]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        synced.append((is_folder, identity.held.certificate))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    before = identity.held.certificate
    identity.doubt()
    await node.run(identity, 60)
    assert synced == [(False, before), (True, before)]
    assert identity.held.certificate != before


def _certificate_on_disk(node: Node) -> str:
    found = node.store.load()
    assert found is not None
    return found.certificate


@pytest.mark.spec("AUTH-9")
def test_what_a_server_gives_must_fit(node: Node) -> None:
    key, csr = node.store.new_request()
    given = node.issuer.credentials("n1", csr)
    with pytest.raises(IdentityRefused, match="keys can't be read"):
        node.store.held(replace(given, grant_keys=("zz",)), key, "x")
    other = IdentityStore(node.folder / "other", "n9", LocalCertificates())
    with pytest.raises(IdentityRefused, match="not of n9"):
        other.held(given, key, "x")
