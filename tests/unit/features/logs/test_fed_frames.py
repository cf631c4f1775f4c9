"""Frames that a node pushes: sent as they are stored, and the same text as the pieces would be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.logchunk import Frame, PlacedFrame, compress
from lattice.domain.logs import Piece, Position
from lattice.features.logs.lines import LineAssembler, Lines
from lattice.features.logs.node import waiting_text
from lattice.features.logs.node.tail import MOST_AT_ONCE
from lattice.features.logs.service.frames import FrameForm, PackedFrame, PassedFrame
from lattice.features.logs.service.live_feeds import NodeFeed
from lattice.features.logs.service.live_stream import FedStream
from lattice.features.logs.service.view import StreamView, ViewStart
from lattice.observe.node_questions import NoAnswer
from lattice.wire.v1 import logs_pb2 as pb
from tests.unit.features.logs.test_feed import KEY, NAME, Capture, Server, fed

LARGE = b"0123456789abcde\n" * (MOST_AT_ONCE // 16)
TAKES_FRAMES = pb.FeedAsk(takes_frames=True).SerializeToString()


def frames_of(server: Server) -> list[pb.FeedFrame]:
    return [each for tell in server.heard for each in tell.pushed.frames]


def text_of(frame: pb.FeedFrame) -> bytes:
    packed = Frame(len(frame.stored), frame.plain_bytes, frame.lines, (frame.plain_bytes, 0))
    return PackedFrame(PlacedFrame(packed, Position(), 0), frame.stored).text()


@pytest.mark.spec("LOG-1")
@pytest.mark.parametrize("takes", [True, False])
async def test_a_large_read_is_pushed_as_its_frame_to_servers_that_can_read_it(
    tmp_path: Path, takes: bool
) -> None:
    capture, server = Capture(tmp_path), Server()

    async def writes() -> None:
        if takes:
            server.questions.put_nowait(TAKES_FRAMES)
        await server.until(lambda: any(each.HasField("streams") for each in server.heard))
        capture.write(b"small\n")
        capture.write(LARGE)  # in one frame with the small one
        capture.write(LARGE)
        capture.write(b"small again\n")
        end = 2 * len(LARGE) + 18
        await server.until(lambda: sum(map(len, texts())) >= end)

    def texts() -> list[bytes]:
        found = {each.offset: each.text for each in server.pieces}
        found |= {each.offset: text_of(each) for each in frames_of(server)}
        return [found[at] for at in sorted(found)]

    await fed(capture, server, writes)
    assert b"".join(texts()) == b"small\n" + LARGE + LARGE + b"small again\n"
    assert [each.plain_bytes for each in frames_of(server)] == ([len(LARGE)] if takes else [])
    assert not server.fetched, "it asked nothing"


@pytest.mark.spec("LOG-3")
async def test_a_slow_server_gets_frames_from_the_spool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_text, "_MOST_BYTES", 3 * len(LARGE))
    capture, server = Capture(tmp_path), Server()

    async def writes() -> None:
        server.questions.put_nowait(TAKES_FRAMES)
        await server.until(lambda: any(each.HasField("streams") for each in server.heard))
        server.ready.clear()
        for number in range(12):
            capture.write(LARGE, number)
            if number == 7:
                capture.spool.close_chunk()
            await asyncio.sleep(0)
        server.ready.set()
        await server.until(lambda: len(frames_of(server)) == 12)

    await fed(capture, server, writes)
    at = Position()
    for number, each in enumerate(frames_of(server)):
        assert (each.offset, each.line, each.time_ms) == (at.offset, at.line, number)
        assert text_of(each) == LARGE
        at = at.past(LARGE)
    assert not server.pieces


def ring_of(parts: Sequence[tuple[bytes, bool]]) -> FedStream:
    """Text as pieces, or as frames where the second word is true."""
    stream, at = FedStream(NAME), Position()
    for number, (text, is_packed) in enumerate(parts):
        if is_packed:
            stored = compress(text)
            marks = (len(text), number)
            frame = Frame(len(stored), len(text), text.count(b"\n"), marks)
            stream.keep(PackedFrame(PlacedFrame(frame, at, 0), stored))
        else:
            stream.keep(Piece(at, number, False, text))
        at = at.past(text)
    return stream


def view_of(stream: FedStream, form: FrameForm) -> StreamView:
    feed: Any = SimpleNamespace(streams={KEY: stream})
    archive: Any = None
    view = StreamView(NAME, archive, None, feed)
    view.form = form
    return view


async def lines_of(view: StreamView, end: int) -> list[tuple[int, int, bytes]]:
    """Each line with its offset and number, as a client makes them of frames."""
    assembler: LineAssembler | None = None
    found = []
    async for item in view.items(end):
        made: list[Lines] = []
        if isinstance(item, PassedFrame):
            if item.begun is not None:
                at = Position(item.at.offset - len(item.begun), item.at.line)
                assembler = LineAssembler(at, begun=item.begun)
            assert assembler is not None
            text, count = item.frame.text(), item.count
            made += assembler.all_lines(Piece(item.at, item.time_ms, False, text, count))
        elif isinstance(item, Lines):
            assembler = None
            made.append(item)
        for each in made:
            at = each.at
            for line in each.text.splitlines(keepends=True):
                found.append((at.offset, at.line, line))
                at = at.past(line)
    return found


PARTS = st.lists(
    st.tuples(
        st.lists(st.sampled_from([b"a", b"bc", b"\n", b"de\nf\n"]), min_size=1, max_size=6).map(
            b"".join
        ),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.spec("LOG-1", "LOG-6")
@given(parts=PARTS, form=st.sampled_from(FrameForm), data=st.data())
async def test_pieces_and_frames_give_the_same_lines(
    parts: list[tuple[bytes, bool]], form: FrameForm, data: st.DataObject
) -> None:
    whole = b"".join(text for text, _ in parts)
    begin = data.draw(
        st.sampled_from([0, *(at + 1 for at, each in enumerate(whole) if each == 10)])
    )
    view = view_of(ring_of(parts), form)
    view.begin(ViewStart(Position().past(whole[:begin])))
    expected, at = [], Position().past(whole[:begin])
    for line in whole[begin:].splitlines(keepends=True):
        if line.endswith(b"\n"):
            expected.append((at.offset, at.line, line))
        at = at.past(line)
    assert await lines_of(view, len(whole)) == expected


@pytest.mark.spec("LOG-6")
async def test_a_frame_is_passed_unread_to_a_viewer_who_can_expand_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    view = view_of(
        ring_of([(b"one\n", False), (b"two\nthr", True), (b"ee\n", True)]), FrameForm.PACKED
    )

    def never(_: PackedFrame) -> bytes:
        raise AssertionError("expanded")

    monkeypatch.setattr(PackedFrame, "text", never)
    kinds = [type(item) async for item in view.items(14)]
    assert kinds == [Lines, PassedFrame, PassedFrame]


@pytest.mark.spec("LOG-1")
def test_viewers_of_one_frame_expand_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, expanded = ring_of([(b"one\n", True)]), []
    text = PackedFrame.text
    monkeypatch.setattr(PackedFrame, "text", lambda frame: expanded.append(1) or text(frame))
    frame = stream.ring[0]
    assert isinstance(frame, PackedFrame)
    assert stream.expand(frame) is stream.expand(frame)
    assert len(expanded) == 1


def test_the_ring_counts_frames_as_they_are_stored() -> None:
    stream = ring_of([(LARGE, True)] * 40)
    assert stream.ring_bytes == sum(each.memory_bytes for each in stream.ring)
    assert len(stream.ring) == 40, "their text is 9 MB"


@pytest.mark.spec("AUTH-7")
@pytest.mark.parametrize(
    "change",
    [
        {"plain_bytes": 0},
        {"plain_bytes": 1 << 20},
        {"lines": 9},
        {"stored": b""},
        {"time_ms": -1},
        {"time_ms": 1 << 60},
    ],
    ids=str,
)
def test_a_frame_that_can_not_be_one_is_not_taken(change: dict[str, Any]) -> None:
    given: dict[str, Any] = {"plain_bytes": 8, "lines": 2, "stored": b"x", "time_ms": 1}
    frame = pb.FeedFrame(**given | change)
    text = pb.FeedText(kind="stdout", source="batch", frames=[frame])
    anything: Any = None
    feed = NodeFeed(anything, "n1", anything, anything, anything, anything)
    with pytest.raises(NoAnswer):
        feed._take(pb.FeedTell(pushed=text))
