"""Replaying recordings: who may, what is shown, and which chunk is bad."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lattice.access.actor import Actor, Role
from lattice.access.output import OutputAccess
from lattice.access.permission import Permission
from lattice.base.errors import DataUnavailable, NotFound, PermissionRefused
from lattice.domain.asciicast import CastEvent, CastKind
from lattice.domain.audit import AuditAct, SensitiveAuditRequired
from lattice.domain.recording import ChunkText, RecordingVerifier
from lattice.features.attach.render import harmless, searched
from lattice.features.attach.service import replay as replay_module
from lattice.features.attach.service.recordings import (
    PAST_RECORDINGS,
    RecordingEntry,
    Recordings,
)
from lattice.features.attach.service.replay import Replay
from tests.fakes.attached import ALICE, BOB
from tests.fakes.sharing import sharing_parts
from tests.unit.features.attach.test_recorded import SESSION, Site, close_site, shown

REVIEWER = Actor(sub="9", user="rita", role=Role.COMPLIANCE_REVIEWER, tenant="physics")
OTHERS_REVIEWER = Actor(sub="10", user="rob", role=Role.COMPLIANCE_REVIEWER, tenant="biology")
ROOT = Actor(sub="7", user="root", role=Role.SYSTEM_ADMIN)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    yield made
    await close_site(made)


def replay_of(site: Site) -> Replay:
    notes = sharing_parts(site.state).notes
    access = OutputAccess(site.finder, notes, site.clock, Permission.READ_OUTPUT)
    return Replay(
        access, Recordings(site.state), site.trail, site.trail, site.store, site.keys.existing
    )


async def recorded(site: Site, *texts: bytes) -> Replay:
    """A session that is over and anchored."""
    client = await site.entered()
    for text in texts:
        await client.type(text)
        await shown(client, len(text))
    await client.type(b"exit 0")
    await client.read()
    await client.conduit.send(b"", last=True)
    await client.leave(orderly=True)
    await site.closer.close_all()
    site.trail.events.clear()
    return replay_of(site)


async def test_a_server_serves_others_while_it_opens_a_recording(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, threads = await recorded(site, b"one"), set[str]()
    take = RecordingVerifier.take

    def noted(verifier: RecordingVerifier, number: int, chunk: bytes) -> ChunkText | None:
        threads.add(threading.current_thread().name)
        return take(verifier, number, chunk)

    monkeypatch.setattr(RecordingVerifier, "take", noted)
    assert (await replay.read(ALICE, SESSION, 0)).closed
    assert threads
    assert threading.main_thread().name not in threads


@pytest.mark.parametrize("actor", [ALICE, REVIEWER], ids=["owner", "reviewer"])
async def test_the_owner_and_the_reviewer_read_it_and_that_is_recorded_first(
    site: Site, actor: Actor
) -> None:
    replay = await recorded(site, b"one", b"two")
    part = await replay.read(actor, SESSION, 0)
    assert '"o","one"' in part.lines
    assert '"i","two"' in part.lines
    assert (part.next, part.bad_chunk, part.closed, part.reason) == (0, None, True, "exited")
    (event,) = site.trail.events
    assert (event.act, event.sub, event.owner) == (AuditAct.RECORDING_READ, actor.sub, "alice")
    site.trail.is_away = True
    with pytest.raises(SensitiveAuditRequired):
        await replay.read(actor, SESSION, 0)


@pytest.mark.threat(2)
async def test_nobody_else_reads_it(site: Site) -> None:
    replay = await recorded(site, b"one")
    for actor in (BOB, OTHERS_REVIEWER):
        with pytest.raises(NotFound, match="no recording of this session"):
            await replay.read(actor, SESSION, 0)
    with pytest.raises(PermissionRefused, match="SensitiveIsolation"):
        await replay.read(ROOT, SESSION, 0)
    for session in ("b" * 32, "../x"):
        with pytest.raises(NotFound, match="no recording of this session"):
            await replay.read(ALICE, session, 0)
    assert site.trail.events == []


async def test_parts_follow_each_other(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = await recorded(site, b"one", b"two", b"three")
    whole = (await replay.read(ALICE, SESSION, 0)).lines
    monkeypatch.setattr(replay_module, "_PART_CHUNKS", 2)
    begin, lines, parts = 0, "", 0
    while True:
        part = await replay.read(ALICE, SESSION, begin)
        assert part.bad_chunk is None
        lines += part.lines
        parts += 1
        if not part.next:
            break
        begin = part.next
    assert parts > 2
    assert lines == whole


@pytest.mark.threat(21)
@pytest.mark.parametrize("harm", ["missing", "changed", "swapped", "cut"])
async def test_the_first_bad_chunk_is_named(site: Site, harm: str) -> None:
    replay = await recorded(site, b"one", b"two", b"three")
    entry = await Recordings(site.state).of(SESSION)
    anchor = await site.anchor()
    assert anchor is not None
    keys = [entry.path.key(number) for number in range(anchor.chunks)]
    bad, body = 2, await site.objects.read(keys[2])
    if harm == "changed":
        await site.objects.put(keys[2], body[:-80] + bytes([body[-80] ^ 1]) + body[-79:])
    elif harm == "swapped":
        await site.objects.put(keys[2], await site.objects.read(keys[3]))
    elif harm == "missing":
        await site.objects.delete(keys[2])
    else:
        bad = anchor.chunks - 1
        await site.objects.delete(keys[-1])
    part = await replay.read(ALICE, SESSION, 0)
    assert part.bad_chunk == bad
    assert part.problem
    assert part.next == 0


@pytest.mark.threat(21)
async def test_the_end_is_what_the_audit_log_says_and_nothing_else(site: Site) -> None:
    """Who may write to the agreed state and to the bucket can't shorten a recording."""
    await recorded(site, b"one", b"two", b"three")
    entry = await Recordings(site.state).of(SESSION)
    anchor = await site.anchor()
    assert anchor is not None
    await site.objects.delete(entry.path.key(anchor.chunks - 1))
    # Another ending of it, in another entry of the log.
    other = replace(site.trail.entries[-1], detail="session x: closed")
    site.trail.entries += [other, site.trail.entries[0]]
    for sequence in (len(site.trail.entries) - 1, len(site.trail.entries), 99):
        await _put(site, msgspec.structs.replace(entry, sequence=sequence))
        with pytest.raises(DataUnavailable, match="does not name this recording"):
            await replay_of(site).read(ALICE, SESSION, 0)
    for moved in ({"tenant": "biology"}, {"account": "other"}, {"cluster": "other"}):
        await _put(site, msgspec.structs.replace(entry, **moved))
        with pytest.raises(DataUnavailable, match="does not name this recording"):
            await replay_of(site).read(ALICE, SESSION, 0)
    await _put(site, entry)
    assert (await replay_of(site).read(ALICE, SESSION, 0)).bad_chunk == anchor.chunks - 1


async def _put(site: Site, entry: RecordingEntry) -> None:
    await site.state.put(PAST_RECORDINGS + SESSION, msgspec.json.encode(entry))


def test_what_reaches_beyond_the_screen_is_left_out() -> None:
    texts = (
        b"\x1b]52;c;c2VjcmV0\x07a",
        b"\x1b[6nb\x1b[c\x1b[>c\x1b[21t\x1b[?2026$p",
        b"\x1bP+q544e\x1b\\c\x05\x1b[31md\x1b[0m",
        "\x9d0;x\x07é\x90ä".encode(),
    )
    found = b"".join(harmless(each)[0] for each in texts)
    assert found == b"abc\x1b[31md\x1b[0m" + "0;x\x07éä".encode()


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("\x9b6n".encode(), b"6n"),
        ("\x9a".encode(), b""),
        (b"\x1b[\b6\x00n", b""),
        (b"\x1b\n[c", b""),
        (b"\x1b\x7f]52;c;c2Vj\x07", b""),
        (b"\x1b[1;1;1;1;2;2*y", b""),
        (b"\x1b[?2026$\x00p", b""),
    ],
    ids=["c1-report", "c1-id", "control-within", "control-before", "delete-before", "sum", "mode"],
)
def test_no_disguise_of_a_question_reaches_the_terminal(text: bytes, rest: bytes) -> None:
    assert harmless(b"a" + text + b"b") == (b"a" + rest + b"b", b"")
    shown, begun = b"", b""
    for at in range(len(text)):
        more, begun = harmless(begun + text[at : at + 1])
        shown += more
    assert (shown, begun) == (rest, b"")


def test_a_string_that_is_too_long_to_be_held_back_is_text() -> None:
    text = b"\x1b]52;c;" + b"A" * 70_000
    shown, begun = harmless(text)
    assert (shown, begun) == (text[1:], b"")


@pytest.mark.parametrize("cut", range(1, 18))
def test_a_sequence_that_two_events_share_is_left_out_too(cut: int) -> None:
    text = b"a\x1b]52;c;c2Vj\x1b\\b\x1b[6nc"
    first, rest = harmless(text[:cut])
    second, left = harmless(rest + text[cut:])
    assert (first + second, left) == (b"abc", b"")


def test_lines_are_found_with_their_times() -> None:
    events = [
        CastEvent(1_000_000, CastKind.OUTPUT, b"one sec"),
        CastEvent(2_000_000, CastKind.INPUT, b"secret"),
        CastEvent(3_000_000, CastKind.OUTPUT, b"\x1b[1mret\x1b[0m\r\ntwo\r\nthe sec"),
        CastEvent(4_000_000, CastKind.OUTPUT, b"ret"),
    ]
    assert list(searched(events, "secret")) == [
        (1_000_000, "one secret"),
        (3_000_000, "the secret"),
    ]
