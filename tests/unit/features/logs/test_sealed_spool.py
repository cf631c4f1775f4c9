"""The spool of a sensitive job: never plain on disk, and what was changed there is read again."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.base.errors import PermissionRefused
from lattice.domain.job_seal import JobSeal
from lattice.domain.logchunk import BadChunk, frames_of, verify
from lattice.domain.sealed import BadSealed, DataKey
from lattice.features.logs.node.capture import Stream
from lattice.features.logs.node.spool import SpoolReader, StreamSpool, head_of
from lattice.features.logs.node.stream_seal import ChunkFile
from lattice.features.logs.node.tail import FileTail
from lattice.features.logs.service.job_seals import opened_chunk
from tests.unit.features.logs.test_spool import HEAD, Spooling, Writer, look, text_of

SEAL = JobSeal(DataKey.new(), "c1", "7@1700000000")
MARKER = b"patient 4711"


class SealedSpooling(Spooling):
    """The same law, whatever happens between two writes."""

    seal = SEAL

    def check_disk(self) -> None:
        for file in (self.folder / "spool").iterdir():
            # The writer's lines are full of these.
            assert b"x" * 40 not in file.read_bytes(), file.name


SealedSpooling.TestCase.settings = settings(stateful_step_count=20)
TestSealedSpooling = SealedSpooling.TestCase


class Node:
    """A node with one stream of a job."""

    opened_here: ClassVar[list[Stream]] = []

    def __init__(self, folder: Path, seal: JobSeal | None = SEAL) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.writer = Writer(folder)
        self.seal = seal
        self.stream = self.opened()

    def opened(self) -> Stream:
        spool = StreamSpool(self.folder / "spool", HEAD, seal=self.seal)
        descriptor = os.open(self.writer.path, os.O_RDONLY)
        tail = FileTail(descriptor, spool.mark, spool.end.offset, spool.seal.digest_key)
        self.opened_here.append(Stream(tail, spool, late=False))
        return self.opened_here[-1]

    def restart(self, change: Callable[[Path], object] = lambda _: None) -> Stream:
        """The agent is killed, its disk is changed, and the next agent begins."""
        self.stream.tail.close()
        self.stream.spool.close()
        change(self.folder / "spool")
        self.stream = self.opened()
        return self.stream

    def on_disk(self) -> bytes:
        return b"".join(each.read_bytes() for each in (self.folder / "spool").iterdir())


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while Node.opened_here:
        stream = Node.opened_here.pop()
        stream.tail.close()
        stream.spool.close()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def filled(node: Node, *, frames: int = 3) -> bytes:
    """Frames and the text of a tail in the open chunk."""
    text = b""
    for number in range(frames):
        line = b"%d %s\n" % (number, MARKER)
        node.writer.write(line * 100)
        text += line * 100
        look(node.stream)
        node.stream.spool._open.make_frame()
    node.writer.write(MARKER + b" in the tail\n")
    look(node.stream)
    return text + MARKER + b" in the tail\n"


def test_an_ordinary_spool_shows_the_text_which_is_the_control(tmp_path: Path) -> None:
    plain = Node(tmp_path / "plain", None)
    filled(plain)
    assert MARKER in plain.on_disk()


@pytest.mark.spec("LOG-8")
def test_nothing_of_the_text_is_on_disk_at_any_stage(node: Node) -> None:
    text = filled(node)
    assert MARKER not in node.on_disk()
    assert text_of(node.stream) == text
    node.stream.spool.close_chunk(last=True)
    assert MARKER not in node.on_disk()
    assert text_of(node.stream) == text


def test_the_mark_of_the_file_does_not_let_anybody_guess_its_text(tmp_path: Path) -> None:
    marks = []
    for number, seal in enumerate((SEAL, JobSeal(DataKey.new(), "c1", "8@1"), None, None)):
        node = Node(tmp_path / str(number), seal)
        node.writer.write(b"result: positive\n")
        look(node.stream)
        marks.append(node.stream.tail.mark.head)
    assert len({*marks}) == 3
    assert marks[2] == marks[3]


def test_the_next_agent_goes_on_with_the_same_key(node: Node) -> None:
    text = filled(node)
    assert text_of(node.restart()) == text
    node.writer.write(b"more\n")
    look(node.stream)
    assert text_of(node.stream) == text + b"more\n"


def test_with_another_key_all_is_read_again_from_the_file(node: Node) -> None:
    text = filled(node)
    node.stream.spool.close_chunk()
    node.seal = JobSeal(DataKey.new(), SEAL.cluster, SEAL.allocation)
    stream = node.restart()
    assert stream.spool.end.offset == 0
    assert stream.spool.closed() == []
    look(stream)
    assert text_of(stream) == text


@pytest.mark.parametrize(("before", "after"), [(None, SEAL), (SEAL, None)])
def test_a_folder_of_the_other_kind_is_emptied(
    tmp_path: Path, before: JobSeal | None, after: JobSeal | None
) -> None:
    node = Node(tmp_path / "node", before)
    text = filled(node)
    node.seal = after
    stream = node.restart()
    head = head_of(stream.spool.folder)
    assert head is not None
    assert head.sealed == (after is not None)
    assert stream.spool.end.offset == 0
    look(stream)
    assert text_of(stream) == text
    assert (MARKER in node.on_disk()) == (after is None)


def _flip(file: Path, position: float) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[int(position * (len(content) - 1))] ^= 1
        file.write_bytes(content)


def _cut(file: Path, position: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(position * len(content))])


def _swap_halves(file: Path, position: float) -> None:
    content = file.read_bytes()
    at = int(position * len(content))
    file.write_bytes(content[at:] + content[:at])


@settings(max_examples=60)
@given(
    name=st.sampled_from(("open.frames", "open.tail", "open.tail2", "000001.chunk")),
    change=st.sampled_from((_flip, _cut, _swap_halves)),
    position=st.floats(0, 1),
)
def test_what_was_changed_cut_or_moved_is_never_shown_and_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    change: Callable[[Path, float], None],
    position: float,
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    node = Node(folder / "node")
    node.writer.write(b"first " + MARKER + b"\n" * 50)
    look(node.stream)
    node.stream.spool.close_chunk()
    filled(node)
    whole = node.writer.path.read_bytes()

    def damage(spool: Path) -> None:
        if (spool / name).exists():
            change(spool / name, position)

    stream = node.restart(damage)
    assert whole.startswith(text_of(stream))
    look(stream)
    assert text_of(stream) == whole
    node.stream.tail.close()
    node.stream.spool.close()
    shutil.rmtree(folder)


@pytest.mark.spec("LOG-8")
def test_parts_of_another_stream_or_job_do_not_open(tmp_path: Path) -> None:
    mine, other = Node(tmp_path / "a"), Node(tmp_path / "b", JobSeal(SEAL.key, "c1", "8@1"))
    filled(mine)
    filled(other)
    other.stream.spool.close()

    def swap(spool: Path) -> None:
        for name in ("open.frames", "open.index", "open.tail", "open.tail2"):
            shutil.copy(other.folder / "spool" / name, spool / name)

    assert mine.restart(swap).spool.end.offset == 0


@pytest.mark.spec("LOG-8")
def test_a_closed_chunk_is_one_sealed_object(node: Node) -> None:
    text = filled(node)
    node.stream.spool.close_chunk()
    ((number, path),) = node.stream.spool.closed()
    sent, index = node.stream.spool.read_closed(number, path)
    assert sent == path.read_bytes()
    content = opened_chunk(SEAL, "n1", "stdout", "batch", number, sent)
    assert verify(content) == index
    assert b"".join(text for _, text in frames_of(content, index)) == text
    for wrong in (
        ("n2", "stdout", "batch", number),
        ("n1", "stderr", "batch", number),
        ("n1", "stdout", "0.1", number),
        ("n1", "stdout", "batch", number + 1),
    ):
        with pytest.raises(PermissionRefused):
            opened_chunk(SEAL, *wrong, sent)
    with pytest.raises(PermissionRefused):
        opened_chunk(JobSeal(SEAL.key, "c2", SEAL.allocation), "n1", "stdout", "batch", 1, sent)
    with pytest.raises(PermissionRefused):
        opened_chunk(SEAL, "n1", "stdout", "batch", number, content)


def test_ranges_of_a_large_chunk_cost_their_segments(node: Node) -> None:
    noise = random.Random(7).randbytes(900_000)
    node.writer.write(noise)
    look(node.stream)
    node.stream.spool.close_chunk()
    reader = SpoolReader(node.stream.spool)
    for offset in (0, 1, 333_333, 899_999):
        pieces = reader.pieces(offset)
        text = b"".join(each.text for each in pieces)
        assert text == noise[offset : offset + len(text)]
        assert text
    found = reader.stored_frame(500_000)
    assert found is not None
    reader.close()


def test_a_changed_chunk_is_told_from_a_whole_one(node: Node) -> None:
    filled(node)
    node.stream.spool.close_chunk()
    ((number, path),) = node.stream.spool.closed()
    _flip(path, 0.3)
    with pytest.raises(BadChunk):
        node.stream.spool.read_closed(number, path)
    _cut(path, 0.5)
    with pytest.raises(BadChunk):
        ChunkFile(path, node.stream.spool.seal)


def test_no_error_has_the_text() -> None:
    with pytest.raises(PermissionRefused) as refused:
        opened_chunk(SEAL, "n1", "stdout", "batch", 1, MARKER * 100)
    assert MARKER.decode() not in str(refused.value)
    assert issubclass(BadSealed, ValueError)
