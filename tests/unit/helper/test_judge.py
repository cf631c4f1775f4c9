"""Who may ask the helper what: the peer, the role, the grant, the question, once."""

from __future__ import annotations

import base64
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lattice.access.grants import GrantSigner
from lattice.base.signatures import SigningKey
from lattice.domain.administration import NodeChange, NodeQuestion
from lattice.domain.grant import GATE, Act
from lattice.domain.privileged import (
    DumpStacks,
    Enter,
    HelperRole,
    NoteOutput,
    OpenNoted,
    OpenOutput,
    OpenOutputFile,
    Outcome,
    ProbeMounts,
    Question,
    ReadTasks,
    Rejoin,
    digest_of,
    verb_of,
    write_request,
)
from lattice.domain.submission import CancelQuestion
from lattice.helper.journal import Peer
from lattice.helper.judge import GrantJudge, Refusal, read_keys
from lattice.helper.trusted_clock import ProvenClock
from tests.fakes.manual_clock import ManualClock

CANCEL = CancelQuestion(jobs=("7",))
NOTE = NoteOutput(7, (11,))


class Bench:
    """A judge, and a server whose key it knows."""

    def __init__(
        self, folder: Path, role: HelperRole = HelperRole.GATE, offered: tuple[str, ...] = ()
    ) -> None:
        self.clock = ManualClock()
        self.key = SigningKey.generate()
        self.file = folder / "keys"
        self.write(self.key)
        self.words: list[str] = []
        node = ("open_output", "open_output_file", "note_output", "open_noted")
        offered = offered or (("submit", "cancel") if role is HelperRole.GATE else node)
        self.judge = GrantJudge(
            role=role, location=GATE, allowed_uid=995, keys_file=self.file, offered=offered,
            clock=ProvenClock(self.clock), on_keys=self.words.append,
        )  # fmt: skip
        self.clock.advance(2)

    def write(self, *keys: SigningKey) -> None:
        text = "".join(base64.b64encode(key.public).decode() + " # a key\n" for key in keys)
        self.file.write_text("\n" + text)

    def grant(
        self, question: Question = CANCEL, act: Act = Act.CANCEL, place: str = GATE,
        key: SigningKey | None = None,
    ) -> str:  # fmt: skip
        signer = GrantSigner(key or self.key, self.clock)
        return signer.issue(act, place, subject="s", user="alice", digest=digest_of(question))

    def refused(self, packet: bytes) -> Refusal:
        with pytest.raises(Refusal) as refusal:
            self.judge.judge(packet)
        return refusal.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent", "gate-grant")
def test_a_granted_question_passes_once(bench: Bench) -> None:
    packet = write_request(bench.grant(), CANCEL)
    asked = bench.judge.judge(packet)
    assert (asked.question, asked.user) == (CANCEL, "alice")
    assert bench.refused(packet).reason == "it was used before"


@pytest.mark.spec("ALLOC-3", "AUTH-9")
@pytest.mark.threat("gate", "helper")
def test_only_one_user_may_ask(bench: Bench) -> None:
    bench.judge.admit(Peer(1, 995))
    for uid in (0, 1000, 65534):
        with pytest.raises(Refusal):
            bench.judge.admit(Peer(1, uid))


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("gate", "agent")
def test_what_a_refused_asker_hears_does_not_say_why(bench: Bench) -> None:
    wrong = [
        write_request(bench.grant(act=Act.SUBMIT), CANCEL),
        write_request(bench.grant(place="n1"), CANCEL),
        write_request(bench.grant(key=SigningKey.generate()), CANCEL),
        write_request(bench.grant(), replace(CANCEL, jobs=("8",))),
        write_request("nonsense", CANCEL),
    ]
    found = [bench.refused(packet) for packet in wrong]
    assert {(each.outcome, each.message) for each in found} == {
        (Outcome.REFUSED, "no grant for this")
    }
    assert len({each.reason for each in found}) == len(found)


@pytest.mark.spec("AUTH-9", "OPS-4")
@pytest.mark.threat("gate-changes")
def test_a_change_needs_what_the_site_allows_and_a_grant_of_its_own(tmp_path: Path) -> None:
    drain = NodeQuestion(cluster="lab", change=NodeChange.DRAIN, nodes=("n1",), reason="o: x")
    bench = Bench(tmp_path)
    refusal = bench.refused(write_request(bench.grant(drain, Act.CHANGE_NODES), drain))
    assert refusal.outcome is Outcome.NOT_OFFERED
    assert refusal.message == "this gate does not allow `nodes`"
    bench = Bench(tmp_path, offered=("submit", "cancel", "change_nodes"))
    for act in (Act.SUBMIT, Act.CANCEL, Act.CHANGE_TENANT, Act.SHOW_RIGHTS):
        refusal = bench.refused(write_request(bench.grant(drain, act), drain))
        assert refusal.outcome is Outcome.REFUSED
    assert bench.refused(write_request("", drain)).outcome is Outcome.REFUSED
    for changed in (
        replace(drain, nodes=("n2",)),
        replace(drain, change=NodeChange.DISABLE),
        replace(drain, cluster="other"),
    ):
        packet = write_request(bench.grant(drain, Act.CHANGE_NODES), changed)
        assert bench.refused(packet).reason == "it is for another question"
    packet = write_request(bench.grant(drain, Act.CHANGE_NODES), drain)
    assert bench.judge.judge(packet).question == drain
    assert bench.refused(packet).reason == "it was used before"


@pytest.mark.spec("AUTH-9")
def test_time_passes(bench: Bench) -> None:
    packet = write_request(bench.grant(), CANCEL)
    bench.clock.advance(60)
    assert bench.refused(packet).reason == "it is not valid at this time"


@pytest.mark.spec("AUTH-9")
def test_nothing_from_before_the_start_is_believed(tmp_path: Path) -> None:
    before = Bench(tmp_path)
    grant = before.grant()
    judge = GrantJudge(
        role=HelperRole.GATE, location=GATE, allowed_uid=1, keys_file=before.file,
        offered=("cancel",), clock=ProvenClock(_later(before.clock)),
    )  # fmt: skip
    with pytest.raises(Refusal) as refusal:
        judge.judge(write_request(grant, CANCEL))
    assert refusal.value.reason == "it is from before this helper began"
    assert refusal.value.outcome is Outcome.UNTIMELY


def _later(clock: ManualClock) -> ManualClock:
    clock.advance(1)
    return clock


@pytest.mark.spec("AUTH-9")
def test_a_verb_of_the_other_role_and_one_not_built(tmp_path: Path, bench: Bench) -> None:
    enter = Enter("0" * 32, (), "xterm", 1, 1, "", False)
    found = bench.refused(write_request("g", enter))
    assert found.outcome is Outcome.NOT_OFFERED
    assert found.message == "the verb `enter` is not one of a gate helper"
    node = Bench(tmp_path, HelperRole.NODE)
    assert node.refused(write_request("g", CANCEL)).outcome is Outcome.NOT_OFFERED
    found = node.refused(write_request("g", enter))
    assert found.message == "the verb `enter` is not built into this helper"


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
def test_only_noting_goes_without_a_grant(tmp_path: Path) -> None:
    node = Bench(tmp_path, HelperRole.NODE)
    asked = node.judge.judge(write_request("", NOTE))
    assert (asked.question, asked.grant, asked.user) == (NOTE, None, "")
    for question in (OpenOutput((1,)), OpenOutputFile("/x"), OpenNoted(1, 0, 0)):
        assert node.refused(write_request("", question)).outcome is Outcome.REFUSED
    # What has a grant was meant to be another question.
    grant = node.grant(NOTE, Act.READ_OUTPUT)
    assert node.refused(write_request(grant, NOTE)).outcome is Outcome.BAD_QUESTION
    assert node.refused(write_request("", CANCEL)).outcome is Outcome.NOT_OFFERED


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent", "helper")
@pytest.mark.parametrize("grant", ["", "made by hand"])
def test_no_terminal_and_no_look_without_a_server_s_signature(tmp_path: Path, grant: str) -> None:
    offered = ("enter", "rejoin", "probe_mounts", "read_tasks", "dump_stacks")
    node = Bench(tmp_path, HelperRole.NODE, offered)
    stranger = SigningKey.generate()
    for question in (
        Enter("0" * 32, (), "xterm", 1, 1, "", False),
        Rejoin("0" * 32),
        ProbeMounts(1000),
        ReadTasks(),
        DumpStacks(1000),
    ):
        assert node.refused(write_request(grant, question)).outcome is Outcome.REFUSED
        act = verb_of(question).act
        forged = node.grant(question, act, key=stranger)
        assert node.refused(write_request(forged, question)).outcome is Outcome.REFUSED
        packet = write_request(node.grant(question, act), question)
        assert node.judge.judge(packet).user == "alice"
        # Nor does it come back with a grant that was used.
        assert node.refused(packet).reason == "it was used before"


@pytest.mark.spec("AUTH-9")
def test_a_gate_notes_nothing(bench: Bench) -> None:
    assert bench.refused(write_request("", NOTE)).outcome is Outcome.NOT_OFFERED


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("agent")
def test_a_grant_for_noted_files_is_for_these_moments_alone(tmp_path: Path) -> None:
    node = Bench(tmp_path, HelperRole.NODE)
    question = OpenNoted(1000, 2000, 0)
    for other in (OpenNoted(0, 2000, 0), OpenNoted(1000, 0, 0), OpenNoted(1000, 2000, 64)):
        grant = node.grant(question, Act.READ_OUTPUT)
        assert node.refused(write_request(grant, other)).reason == "it is for another question"
    node.judge.judge(write_request(node.grant(question, Act.READ_OUTPUT), question))


@pytest.mark.spec("AUTH-9")
def test_keys_are_read_again_when_the_file_changes(bench: Bench) -> None:
    new = SigningKey.generate()
    bench.write(bench.key, new)
    bench.judge.judge(write_request(bench.grant(key=new), CANCEL))
    bench.judge.judge(write_request(bench.grant(), CANCEL))
    bench.write(new)
    _touch(bench.file)
    assert "not known" in bench.refused(write_request(bench.grant(), CANCEL)).reason
    bench.file.write_text("broken")
    bench.judge.judge(write_request(bench.grant(key=new), CANCEL))
    assert [word.partition(":")[0] for word in bench.words] == [
        "read again",
        "read again",
        "not read",
    ]


def _touch(file: Path) -> None:
    found = file.stat()
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


@pytest.mark.parametrize("text", ["", "#\n", "abc\n", "AAAA\n", "!" * 44])
def test_a_file_without_keys_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ValueError, match="key"):
        read_keys(file)


@pytest.mark.spec("AUTH-9")
@pytest.mark.threat("helper")
@pytest.mark.parametrize("place", ["keys", "."])
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_keys_that_others_than_root_can_change_are_refused(
    bench: Bench, place: str, mode: int
) -> None:
    read_keys(bench.file)
    (bench.file.parent / place).chmod(mode)
    try:
        with pytest.raises(ValueError, match="others than root can change it"):
            read_keys(bench.file)
    finally:
        bench.file.parent.chmod(0o700)


def test_keys_of_another_owner_are_refused(bench: Bench) -> None:
    os.chown(bench.file, 43001, -1)
    with pytest.raises(ValueError, match="owner 43001"):
        read_keys(bench.file)
