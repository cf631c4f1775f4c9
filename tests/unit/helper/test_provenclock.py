"""The helper's clock on a node whose own is wrong: who can set it, and never back."""

from __future__ import annotations

import base64
import json
import math
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.access.grants import GrantSigner
from lattice.base.signatures import SigningKey
from lattice.domain.grant import Act
from lattice.domain.privileged import (
    Challenge,
    HelperRole,
    OpenOutputFile,
    Outcome,
    SetClock,
    digest_of,
    write_request,
)
from lattice.domain.signedtime import BadTime, SignedTime
from lattice.helper.judge import GrantJudge, Refusal
from lattice.helper.trusted_clock import ANSWERED_WITHIN_S, ProvenClock
from tests.examples import examples
from tests.fakes.manual_clock import ManualClock

ASKED = OpenOutputFile("/home/alice/out")


class WrongClock(ManualClock):
    """The node's: it can be set without any time passing."""

    def set_by(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)


class Node:
    """A helper on a node, and a server whose key it knows. The server's clock is the true one."""

    def __init__(self, folder: Path, *, ahead_s: float = 0.0) -> None:
        self.truth = ManualClock()
        self.wall = WrongClock()
        self.wall.set_by(ahead_s)
        self.key = SigningKey.generate()
        self.signer = GrantSigner(self.key, self.truth)
        self.folder = folder
        self.boot_id = "boot-1"
        (folder / "keys").write_text(base64.b64encode(self.key.public).decode())
        self.restart()

    def restart(self) -> None:
        self.clock = ProvenClock(
            self.wall, self.folder / "clock", uptime=self.wall.monotonic, boot_id=self.boot_id
        )
        self.judge = GrantJudge(
            role=HelperRole.NODE,
            location="n1",
            allowed_uid=1,
            keys_file=self.folder / "keys",
            offered=("open_output_file", "challenge", "set_clock"),
            clock=self.clock,
        )

    def pass_time(self, seconds: float) -> None:
        self.truth.advance(seconds)
        self.wall.advance(seconds)

    def challenge(self) -> str:
        answer = self.judge.answered(self.judge.judge(write_request("", Challenge())))
        assert answer is not None
        assert answer.outcome is Outcome.DONE
        return answer.output

    def set_clock(self, signed: str) -> None:
        answer = self.judge.answered(self.judge.judge(write_request("", SetClock(signed))))
        assert answer is not None
        assert answer.outcome is Outcome.DONE

    def prove(self) -> str:
        signed = self.signer.sign_time("n1", self.challenge())
        self.set_clock(signed)
        return signed

    def grant(self) -> str:
        return self.signer.issue(
            Act.READ_OUTPUT, "n1", subject="s", user="alice", digest=digest_of(ASKED)
        )

    def use(self, grant: str) -> None:
        self.judge.judge(write_request(grant, ASKED))

    def refuses(self, grant: str) -> Refusal:
        with pytest.raises(Refusal) as refusal:
            self.use(grant)
        return refusal.value

    @property
    def error_s(self) -> float:
        """By how much the helper is ahead of the truth."""
        return (self.clock.now() - self.truth.now()).total_seconds()


@pytest.fixture(params=[300.0, -300.0, 86_400.0])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    return Node(tmp_path, ahead_s=request.param)


@pytest.mark.spec("AUTH-9")
def test_grants_hold_once_the_time_is_proven(node: Node) -> None:
    node.pass_time(2)
    grant = node.grant()
    refusal = node.refuses(grant)
    assert refusal.outcome is Outcome.UNTIMELY
    assert f"{node.wall.now():%H:%M:%S} UTC" in refusal.message
    node.prove()
    assert node.clock.is_proven
    assert 0 <= node.error_s < 0.01
    node.use(grant)  # the refusal has not used it up
    assert node.refuses(grant).reason == "it was used before"


@pytest.mark.spec("AUTH-9")
def test_it_runs_on_by_the_kernels_count_whatever_is_set(node: Node) -> None:
    node.prove()
    node.pass_time(3600)
    node.wall.set_by(-86_400)
    assert 0 <= node.error_s < 0.01
    node.use(node.grant())
    node.wall.set_by(200_000)
    node.use(node.grant())


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
def test_a_late_answer_only_brings_it_forward(node: Node) -> None:
    signed = node.signer.sign_time("n1", node.challenge())
    node.pass_time(ANSWERED_WITHIN_S - 0.1)
    node.set_clock(signed)
    assert 0 <= node.error_s <= ANSWERED_WITHIN_S
    node.use(node.grant())
    late = node.signer.sign_time("n1", node.challenge())
    node.pass_time(ANSWERED_WITHIN_S + 0.1)
    with pytest.raises(Refusal, match="too long"):
        node.set_clock(late)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
def test_an_answer_works_once_and_for_the_newest_question_alone(node: Node) -> None:
    seen = node.prove()
    for stale in (seen, node.signer.sign_time("n1", "0" * 64)):
        with pytest.raises(Refusal, match="no question"):
            node.set_clock(stale)
    older = node.signer.sign_time("n1", node.challenge())
    newer = node.signer.sign_time("n1", node.challenge())
    with pytest.raises(Refusal, match="no question"):
        node.set_clock(older)
    with pytest.raises(Refusal, match="no question"):
        node.set_clock(newer)  # spent by the wrong answer: ask anew
    node.prove()


@pytest.mark.spec("AUTH-9")
def test_another_key_another_place_no_signature_and_a_grant(node: Node) -> None:
    nonce = node.challenge()
    foreign = GrantSigner(SigningKey.generate(), node.truth)
    for text, why in (
        (foreign.sign_time("n1", nonce), "not known"),
        (node.signer.sign_time("n2", nonce), "for n2"),
        (node.grant(), "does not fit"),
        ("x", "not a grant"),
    ):
        with pytest.raises(Refusal, match=why):
            node.set_clock(text)
    key, payload, signature = node.signer.sign_time("n1", nonce).split(".")
    changed = SignedTime(place="n1", nonce=nonce, time_ms=1).payload()
    other = base64.urlsafe_b64encode(changed).rstrip(b"=").decode()
    with pytest.raises(Refusal, match="does not fit"):
        node.set_clock(f"{key}.{other}.{signature}")
    assert not node.clock.is_proven
    node.set_clock(f"{key}.{payload}.{signature}")


@pytest.mark.spec("AUTH-9")
def test_a_signed_time_is_no_grant(node: Node) -> None:
    signed = node.prove()
    assert node.refuses(signed).reason == "the signature does not fit"


@pytest.mark.spec("AUTH-9")
def test_a_helper_that_starts_again_goes_by_what_was_proven(node: Node) -> None:
    node.prove()
    node.pass_time(2)
    before = node.grant()
    node.use(before)
    node.pass_time(1)
    node.restart()
    assert node.clock.is_proven
    refusal = node.refuses(before)
    assert refusal.outcome is Outcome.UNTIMELY, "what was used is forgotten: nothing of then holds"
    node.pass_time(1)
    node.use(node.grant())
    # Minutes later the wrong clock reads as it truly was when the grant was given.
    for _ in range(40):
        node.pass_time(10)
        node.refuses(before)


@pytest.mark.spec("AUTH-9")
def test_what_was_proven_ends_with_the_boot(node: Node) -> None:
    node.prove()
    node.boot_id = "boot-2"
    node.restart()
    assert not node.clock.is_proven
    assert node.clock.now() == node.wall.now()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "booted_s": NaN}',
     '{"boot_id": "boot-1", "booted_s": "1"}', '{"boot_id": "boot-1", "booted_s": true}'],
)  # fmt: skip
def test_a_file_that_says_nothing(tmp_path: Path, content: str) -> None:
    node = Node(tmp_path, ahead_s=300)
    (tmp_path / "clock").write_text(content)
    node.restart()
    assert not node.clock.is_proven
    node.prove()
    assert math.isfinite(json.loads((tmp_path / "clock").read_text())["booted_s"])
    assert (tmp_path / "clock").stat().st_mode & 0o777 == 0o600


def test_a_clock_without_a_place_to_keep_it(tmp_path: Path) -> None:
    clock = ProvenClock(ManualClock(), tmp_path / "none" / "clock", boot_id="b")
    told = SignedTime(place="n1", nonce=clock.challenge(), time_ms=1_000_000)
    clock.prove(told)
    assert clock.is_proven
    with pytest.raises(BadTime):
        clock.prove(told)


@pytest.mark.spec("LOG-7")
def test_moments_of_the_nodes_clock_are_told_in_the_servers(node: Node) -> None:
    born = node.wall.now().timestamp()
    assert node.clock.to_server_time(born) == born
    truly = node.truth.now().timestamp()
    node.prove()
    node.pass_time(50)
    assert node.clock.to_server_time(born) == pytest.approx(truly, abs=0.01)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 4.0, 20.0, 60.0, 300.0])),
        st.tuples(st.just("set"), st.sampled_from([-3600.0, -300.0, 300.0, 3600.0])),
        st.tuples(st.sampled_from(["ask", "sign", "grant", "restart"]), st.just(0.0)),
        # From the newest backwards.
        st.tuples(st.sampled_from(["bring", "use"]), st.sampled_from([0.0, 0.0, 1.0, 2.0, 7.0])),
    ),
    max_size=60,
)


class Collector:
    """An agent in the wrong hands: it keeps every word, every signed time and every grant."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.signed = [node.prove()]
        self.nonce = node.challenge()
        self.grants: list[tuple[str, float]] = []
        self.used: set[str] = set()

    def step(self, name: str, figure: float) -> None:
        getattr(self, f"_{name}")(figure)

    def _pass(self, seconds: float) -> None:
        self.node.pass_time(seconds)

    def _set(self, seconds: float) -> None:
        self.node.wall.set_by(seconds)

    def _restart(self, _: float) -> None:
        self.node.restart()

    def _ask(self, _: float) -> None:
        self.nonce = self.node.challenge()

    def _sign(self, _: float) -> None:
        self.signed.append(self.node.signer.sign_time("n1", self.nonce))

    def _grant(self, _: float) -> None:
        self.grants.append((self.node.grant(), self.node.truth.now().timestamp() + 30))

    def _bring(self, back: float) -> None:
        with suppress(Refusal):
            self.node.set_clock(self.signed[-1 - int(back) % len(self.signed)])

    def _use(self, back: float) -> None:
        if not self.grants:
            return
        text, expires = self.grants[-1 - int(back) % len(self.grants)]
        try:
            self.node.use(text)
        except Refusal:
            return
        assert self.node.truth.now().timestamp() <= expires + 5, "it had run out"
        assert text not in self.used, "it was used before"
        self.used.add(text)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
@settings(max_examples=examples(8))
@given(ahead_s=st.floats(-4000, 4000), steps=STEPS)
def test_nothing_kept_ever_makes_an_expired_or_used_grant_good(
    ahead_s: float, steps: list[tuple[str, float]]
) -> None:
    with TemporaryDirectory() as folder:
        collector = Collector(Node(Path(folder), ahead_s=ahead_s))
        for name, figure in steps:
            collector.step(name, figure)
            assert collector.node.error_s >= 0, "never behind"
