"""Who reads whose output on the real thing, and what its owner sees of that."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab.laboratory import Lab
from tests.e2e.log_lines import numbers, script
from tests.e2e.people import Person, Said
from tests.eventually import eventually

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

_ABSENT = 7_000_000


@pytest.fixture
def olga(lab: Lab) -> Person:
    """A system admin has no Unix account: she sits at alice's terminal, with her own token."""
    olga = Person(lab, "alice")
    olga._token = str(lab.oidc.token("olga", "openid admin")["access_token"])
    return olga


def written(lab: Lab, owner: Person, *options: str) -> int:
    """A finished job of theirs whose one line is stored."""
    job = lab.sbatch(owner.name, *options, wrap="echo what it wrote")
    lab.wait_job_state(job, "COMPLETED")
    eventually(lambda: reads(owner, job), lambda said: said.out == "what it wrote\n")
    return job


def reads(person: Person, job: int) -> Said:
    return person.tries("logs", str(job))


def not_there(person: Person, job: int, *words: str) -> None:
    """One answer, the same as for what never was."""
    answers = [person.tries(*words, str(each)) for each in (job, _ABSENT)]
    assert [each.code for each in answers] == [102, 102], answers
    said = [each.err.replace(str(_ABSENT), "N").replace(str(job), "N") for each in answers]
    assert said[0] == said[1]


def readers(owner: Person, job: int) -> dict[str, tuple[str, int]]:
    return {
        each["reader"]: (each["standing"], each["reads"] + each["follows"] + each["downloads"])
        for each in owner.asks("share", str(job))["readers"]
    }


@pytest.mark.story
@pytest.mark.spec("AUTH-7", "AUTH-12")
def test_alice_shares_with_bob_and_takes_it_back(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    job, other = written(quiet_lab, alice), written(quiet_lab, alice)
    not_there(bob, job, "logs")
    said = alice.tries("share", str(job), "--with", "bob", "--for", "1d")
    assert said.code == 0, said
    assert said.out.startswith(f"Shared allocation {job} with bob until ")
    # On whichever replica he asks, at once.
    for _ in range(4):
        assert reads(bob, job).out == "what it wrote\n"
    assert bob.card(job)["allocation"]["user"] == "alice"
    assert bob.card(job)["readers"] == [], "who reads is the owner's to know"
    # And nothing else of hers: no list, no other job, nothing that acts.
    assert str(job) not in bob.sees("status", "--all") | bob.sees("history", "--all")
    not_there(bob, other, "logs")
    not_there(bob, other, "status")
    not_there(bob, job, "cancel")
    not_there(bob, job, "share")
    not_there(bob, job, "unshare", "--with", "bob")
    card = alice.tries("status", str(job)).out
    assert "with bob until" in card
    assert "by bob (shared)" in card
    assert alice.tries("unshare", str(job), "--with", "bob").code == 0
    not_there(bob, job, "logs")
    not_there(bob, job, "status")
    assert "with bob until" not in alice.tries("status", str(job)).out
    assert readers(alice, job)["bob"][0] == "shared", "that he read it stays"


def _follow_what_is_no_longer_shared(quiet_lab: Lab, alice: Person, bob: Person) -> float:
    """The seconds until the stream ended."""
    job = quiet_lab.sbatch("alice", wrap=script("f", 4000, pause_s=0.05))
    quiet_lab.wait_job_state(job, "RUNNING")
    assert alice.tries("share", str(job), "--with", "bob").code == 0
    following = quiet_lab.popen_as("bob", ["lattice", "logs", str(job), "-f"], env=bob.bearer)
    eventually(lambda: readers(alice, job), lambda seen: "bob" in seen)
    time.sleep(4)
    assert following.poll() is None, following.communicate()
    assert alice.tries("unshare", str(job), "--with", "bob").code == 0
    ended = time.monotonic()
    out, err = following.communicate(timeout=120)
    took_s = time.monotonic() - ended
    assert following.returncode == 102, err
    assert f"No allocation {job} of yours" in err
    seen = numbers(out.splitlines(), "f")
    assert seen == list(range(len(seen)))
    assert seen
    return took_s


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("ended-share")
def test_a_followed_stream_ends_when_it_is_no_longer_shared(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    _follow_what_is_no_longer_shared(quiet_lab, alice, bob)


@pytest.mark.timing
@pytest.mark.spec("AUTH-7")
def test_a_followed_stream_ends_within_ten_seconds_when_it_is_no_longer_shared(
    quiet_lab: Lab, alice: Person, bob: Person
) -> None:
    assert _follow_what_is_no_longer_shared(quiet_lab, alice, bob) < 10


@pytest.mark.story
@pytest.mark.spec("AUTH-7", "AUTH-12")
@pytest.mark.threat("secret-read")
def test_who_governs_reads_and_is_seen(
    quiet_lab: Lab, alice: Person, bob: Person, carol: Person, olga: Person
) -> None:
    """Carol is admin of biology and coordinates theory; alice's research is in physics."""
    dave, erin = (Person(quiet_lab, name).logged_in() for name in ("dave", "erin"))
    hers, his = written(quiet_lab, alice), written(quiet_lab, bob)
    theory = written(quiet_lab, dave, "-A", "theory")
    for job in (his, theory):
        assert reads(carol, job).out == "what it wrote\n"
    not_there(carol, hers, "logs")
    not_there(erin, his, "logs")  # of the same project
    assert reads(olga, hers).out == "what it wrote\n"
    assert readers(bob, his) == {"carol": ("tenant admin", 1)}
    assert readers(dave, theory) == {"carol": ("coordinator", 1)}
    assert readers(alice, hers) == {"olga": ("system admin", 1)}
    assert "by carol (tenant admin) once, last " in bob.tries("status", str(his)).out
    assert carol.card(his)["readers"] == []


@pytest.fixture
def no_quorum(quiet_lab: Lab) -> Iterator[Lab]:
    members = quiet_lab.etcd.members[:2]
    yield quiet_lab
    for each in members:
        if not each.alive:
            each.start()
    for each in members:
        each.wait_healthy()


@pytest.mark.spec("AUTH-7")
@pytest.mark.threat("secret-read")
@pytest.mark.long
def test_what_cannot_be_written_down_is_not_shown(
    no_quorum: Lab, bob: Person, carol: Person
) -> None:
    his = written(no_quorum, bob)
    for each in no_quorum.etcd.members[:2]:
        each.kill()
    refused = eventually(lambda: reads(carol, his), lambda said: said.code == 75)
    assert "can't be written down" in refused.err
    assert refused.out == ""
    own = reads(bob, his)
    assert (own.code, own.out) == (0, "what it wrote\n"), own
    for each in no_quorum.etcd.members[:2]:
        each.start()
    eventually(lambda: reads(carol, his), lambda said: said.out == "what it wrote\n")
    eventually(lambda: readers(bob, his), lambda seen: seen["carol"][0] == "tenant admin")
