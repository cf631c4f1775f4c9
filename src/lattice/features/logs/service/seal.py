"""The seal of an attempt's logs: its chunks when it was complete, signed by a server.

It is in `metadata.json`. The signature covers one digest, which covers a line for each chunk. The
line has the position of the chunk and the SHA-256 of its index, which has the SHA-256 of its text.
So a seal needs no reading of text, and each chunk can be verified by itself.

A chunk that a node sends after the seal gets a signed note, as an object beside it. Nothing that is
signed is written twice, so two replicas can't undo each other's work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.access.grants import SEAL_MARK, GrantSigner
from lattice.base.signatures import BadSignature, KeyRing
from lattice.domain.logchunk import BadChunk, index_size
from lattice.domain.logs import BadSource, LogKind, LogSource, Position, StreamName
from lattice.domain.objects import BadKeyPart, NoObject, ObjectStore, escaped
from lattice.features.logs.service.log_keys import AttemptName

METADATA = "metadata.json"
_LATE = "late"
_MARK = b"lattice log seal 1\n"
_LATE_MARK = b"lattice late chunk 1\n"


class Seal(msgspec.Struct, frozen=True):
    """What is signed, and by which key."""

    key: str
    digest: str
    signature: str


class BrokenSeal(Exception):
    """There is a seal and it is invalid; the text says why."""


@dataclass(frozen=True, slots=True)
class SealedChunk:
    """One chunk as it was sealed."""

    key: str
    stream: StreamName
    begin: Position
    end: Position
    digest: str


class _Chunk(msgspec.Struct, frozen=True):
    key: str
    offset: int
    bytes: int
    line: int
    lines: int
    index_sha256: str = ""


class _Stream(msgspec.Struct, frozen=True):
    node: str
    stream: LogKind
    source: str
    chunks: tuple[_Chunk, ...]


class _Metadata(msgspec.Struct, frozen=True):
    streams: tuple[_Stream, ...]
    seal: Seal | None = None


class Seals:
    """Makes and verifies seals. `believed` are the public keys that it trusts."""

    def __init__(
        self, objects: ObjectStore, signer: GrantSigner | None, believed: Iterable[bytes] = ()
    ) -> None:
        self._objects = objects
        self._signer = signer
        self._ring = KeyRing(believed)

    def made(self, name: AttemptName, metadata: bytes) -> Seal | None:
        """The seal for this content; None without a key to sign with."""
        read = msgspec.json.decode(metadata, type=_Metadata)
        return self._signed(_MARK, _lines(name, read.streams))

    async def of(self, name: AttemptName) -> dict[str, SealedChunk] | None:
        """The sealed chunks by key, or None. Raises `BrokenSeal` and `Unavailable`."""
        try:
            content = await self._objects.read(f"{name.prefix}/{METADATA}")
            read = msgspec.json.decode(content, type=_Metadata)
        except NoObject:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, BadChunk):
            raise BrokenSeal(f"{METADATA} can't be read") from None
        if read.seal is None:
            return None
        try:
            self._check(read.seal, _MARK, _lines(name, read.streams))
            return {each.key: each for each in _sealed(name, read.streams)}
        except (BadSource, BadKeyPart):
            raise BrokenSeal(f"{METADATA} names no streams") from None

    async def note_late(self, name: AttemptName, key: str, content: bytes) -> None:
        """Sign a note for a chunk that came after the seal. Raises `Unavailable`."""
        try:
            await self._objects.read_end(f"{name.prefix}/{METADATA}", 1)
        except NoObject:
            return
        except BadChunk:
            # It is there, and was changed.
            pass
        seal = self._signed(_LATE_MARK, [_late_line(key, index_digest(content))])
        if seal is not None:
            await self._objects.put_new(_late_key(name, key), msgspec.json.encode(seal))

    async def is_late(self, name: AttemptName, key: str, digest: str) -> bool:
        """True if a server accepted this very chunk after the seal. Raises `Unavailable`."""
        try:
            content = await self._objects.read(_late_key(name, key))
            seal = msgspec.json.decode(content, type=Seal)
            self._check(seal, _LATE_MARK, [_late_line(key, digest)])
        except (NoObject, BadChunk, BrokenSeal):
            return False
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        return True

    def _signed(self, mark: bytes, lines: Iterable[str]) -> Seal | None:
        if self._signer is None:
            return None
        digest = _digest(lines)
        key, signature = self._signer.sign_seal(mark + digest.encode())
        return Seal(key, digest, signature.hex())

    def _check(self, seal: Seal, mark: bytes, lines: Iterable[str]) -> None:
        digest = _digest(lines)
        if digest != seal.digest:
            raise BrokenSeal("what it says of the chunks was changed")
        if seal.key not in self._ring.names:
            raise BrokenSeal(f"it was made with the key {seal.key[:16]}, which is not known here")
        try:
            signed = SEAL_MARK + mark + digest.encode()
            self._ring.verify(seal.key, signed, bytes.fromhex(seal.signature))
        except (BadSignature, ValueError):
            raise BrokenSeal("its signature does not fit") from None


def index_digest(tail: bytes) -> str:
    """The SHA-256 of a chunk's index, from the end of the chunk. Raises `BadChunk`."""
    size = index_size(tail)
    if size > len(tail):
        raise BadChunk("the index is cut")
    return hashlib.sha256(tail[-size:]).hexdigest()


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("".join(f"{each}\n" for each in lines).encode()).hexdigest()


def _lines(name: AttemptName, streams: Iterable[_Stream]) -> list[str]:
    """The attempt, and each chunk with all facts that are shown if it is missing."""
    lines = [
        f"{escaped(stream.node)} {stream.stream.value} {escaped(stream.source)} {each.key} "
        f"{each.offset} {each.bytes} {each.line} {each.lines} {each.index_sha256}"
        for stream in streams
        for each in stream.chunks
    ]
    return [name.prefix, *sorted(lines)]


def _sealed(name: AttemptName, streams: Iterable[_Stream]) -> Iterable[SealedChunk]:
    for stream in streams:
        source = StreamName(stream.node, stream.stream, LogSource.parse(stream.source))
        for each in stream.chunks:
            yield SealedChunk(
                f"{name.prefix}/{each.key}",
                source,
                Position(each.offset, each.line),
                Position(each.offset + each.bytes, each.line + each.lines),
                each.index_sha256,
            )


def _late_key(name: AttemptName, key: str) -> str:
    return f"{name.prefix}/{_LATE}/{key.removeprefix(f'{name.prefix}/')}"


def _late_line(key: str, digest: str) -> str:
    return f"{key} {digest}"
