"""What is written of sensitive work: sealed objects and sealed parts. Pure.

    object = segment* , foot           a whole object that is also read in ranges
    part   = salt , cipher text , tag  one frame or record of a file that grows

Each sealing has a key of its own. It is derived from the data key of the allocation and from 24
random bytes, the salt. So no (key, nonce) is ever used for two texts, whatever a process forgot in
a crash: nothing is counted across restarts. Within an object the nonce is the segment's number, and
whether it is the last.

The associated data names what it is: the object, or the stream and the position. What was changed,
cut, renamed, or moved from elsewhere does not open.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from lattice.base.aes_gcm import KEY_BYTES, NONCE_BYTES, TAG_BYTES, BadTag, aes_gcm, derived_key

SEGMENT_BYTES = 64 * 1024
"""Plain bytes; a range costs the segments that it touches."""
SALT_BYTES = 24
KEY_ID_BYTES = 16
PART_OVERHEAD_BYTES = SALT_BYTES + TAG_BYTES
_SEALED_SEGMENT = SEGMENT_BYTES + TAG_BYTES
_MARK = b"LATSEAL1"
"""The format and its version."""
_FOOT = struct.Struct(f">{SALT_BYTES}s{KEY_ID_BYTES}sQ8s")
FOOT_BYTES = _FOOT.size
_NONCE = struct.Struct(">Q3xB")
_ASSOCIATED = struct.Struct(f">8s{KEY_ID_BYTES}sQ")
_OBJECT = b"lattice sealed object 1"
_PART = b"lattice sealed part 1"


class BadSealed(ValueError):
    """It does not open: it was changed, cut or moved, or belongs to another key."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """The key of one allocation, and the id that its objects carry."""

    id: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.id) != KEY_ID_BYTES or len(self.secret) != KEY_BYTES:
            raise ValueError("not a data key")

    @classmethod
    def new(cls) -> DataKey:
        return cls(secrets.token_bytes(KEY_ID_BYTES), secrets.token_bytes(KEY_BYTES))

    def digest_key(self) -> bytes:
        """The key for digests of plain text: without it nobody can guess what a digest is of."""
        return derived_key(self.secret, self.id, b"lattice sealed digests 1")


def binding(*parts: str | int) -> bytes:
    """The name that a sealing is bound to; no two lists of parts have the same."""
    named = [str(each).encode("utf-8", "surrogateescape") for each in parts]
    return b"".join(struct.pack(">I", len(each)) + each for each in named)


def seal_part(key: DataKey, bound: bytes, plain: bytes) -> bytes:
    """One part. It is longer than `plain` by `PART_OVERHEAD_BYTES`."""
    salt = secrets.token_bytes(SALT_BYTES)
    cipher = aes_gcm(derived_key(key.secret, salt, _PART))
    # The key is new, so one constant nonce is used once.
    return salt + cipher.seal(bytes(NONCE_BYTES), plain, bound)


def open_part(key: DataKey, bound: bytes, sealed: bytes) -> bytes:
    """The plain text of a part. Raises `BadSealed`."""
    salt = sealed[:SALT_BYTES]
    if len(sealed) < PART_OVERHEAD_BYTES:
        raise BadSealed("it is cut")
    cipher = aes_gcm(derived_key(key.secret, salt, _PART))
    try:
        return cipher.open(bytes(NONCE_BYTES), sealed[SALT_BYTES:], bound)
    except BadTag:
        raise BadSealed("it was changed, or belongs elsewhere") from None


@dataclass(frozen=True, slots=True)
class Foot:
    """The end of a sealed object: all that is needed to open its segments, but the key."""

    salt: bytes
    key_id: bytes
    plain_bytes: int

    @classmethod
    def parse(cls, data: bytes, object_bytes: int) -> Foot:
        """The foot at the end of an object of that size. Raises `BadSealed`."""
        if len(data) < FOOT_BYTES:
            raise BadSealed("it is too short to be sealed")
        salt, key_id, plain_bytes, mark = _FOOT.unpack(data[-FOOT_BYTES:])
        if mark != _MARK:
            raise BadSealed("it is not sealed")
        if sealed_bytes(plain_bytes) != object_bytes:
            raise BadSealed("it is cut")
        return cls(salt, key_id, plain_bytes)

    def encode(self) -> bytes:
        return _FOOT.pack(self.salt, self.key_id, self.plain_bytes, _MARK)

    @property
    def segments(self) -> int:
        """How many there are; an empty text has one, so that its tag is verified too."""
        return max(1, -(-self.plain_bytes // SEGMENT_BYTES))


def sealed_bytes(plain_bytes: int) -> int:
    """The size of the object that seals so many bytes."""
    segments = max(1, -(-plain_bytes // SEGMENT_BYTES))
    return plain_bytes + segments * TAG_BYTES + FOOT_BYTES


def plain_bytes(object_bytes: int) -> int:
    """The size of the text in a sealed object of that size; -1 if no such object has it."""
    body = object_bytes - FOOT_BYTES
    segments = -(-body // _SEALED_SEGMENT)
    plain = body - segments * TAG_BYTES
    return plain if body > 0 and sealed_bytes(max(plain, 0)) == object_bytes else -1


def seal_object(key: DataKey, bound: bytes, plain: bytes) -> bytes:
    """A whole object."""
    foot = Foot(secrets.token_bytes(SALT_BYTES), key.id, len(plain))
    cipher = _Segments(key, bound, foot)
    sealed = [
        cipher.seal(number, plain[number * SEGMENT_BYTES :][:SEGMENT_BYTES])
        for number in range(foot.segments)
    ]
    return b"".join((*sealed, foot.encode()))


def open_object(key: DataKey, bound: bytes, sealed: bytes) -> bytes:
    """The plain text of a whole object. Raises `BadSealed`."""
    foot = Foot.parse(sealed[-FOOT_BYTES:], len(sealed))
    wanted = SealedRange.of(foot.plain_bytes, 0, foot.plain_bytes)
    return wanted.open(key, bound, foot, sealed[wanted.begin : wanted.end])


@dataclass(frozen=True, slots=True)
class SealedRange:
    """The segments with a range of the text, and where they are in the object."""

    first: int
    begin: int
    """In the object."""
    end: int
    skip: int
    """Plain bytes before the range, in the first segment."""
    size: int
    """Of the range."""

    @classmethod
    def of(cls, plain_bytes: int, begin: int, end: int) -> SealedRange:
        """The range from `begin` to `end` of a text of that size."""
        begin, end = min(begin, plain_bytes), min(max(begin, end), plain_bytes)
        last = max(0, -(-plain_bytes // SEGMENT_BYTES) - 1)
        first = min(begin // SEGMENT_BYTES, last)
        until = min(max(end - 1, begin) // SEGMENT_BYTES, last)
        body = plain_bytes + (last + 1) * TAG_BYTES
        return cls(
            first,
            first * _SEALED_SEGMENT,
            min((until + 1) * _SEALED_SEGMENT, body),
            begin - first * SEGMENT_BYTES,
            end - begin,
        )

    def open(self, key: DataKey, bound: bytes, foot: Foot, stored: bytes) -> bytes:
        """The text of the range, from the bytes of its segments. Raises `BadSealed`."""
        if len(stored) != self.end - self.begin:
            raise BadSealed("it is cut")
        cipher = _Segments(key, bound, foot)
        text = b"".join(cipher.opened(self.first, stored))
        return text if len(text) == self.size else text[self.skip : self.skip + self.size]


class _Segments:
    """The cipher of one object."""

    def __init__(self, key: DataKey, bound: bytes, foot: Foot) -> None:
        if foot.key_id != key.id:
            raise BadSealed("it is sealed with another key than that of its allocation")
        self._foot = foot
        self._cipher = aes_gcm(derived_key(key.secret, foot.salt, _OBJECT))
        self._associated = _ASSOCIATED.pack(_MARK, foot.key_id, foot.plain_bytes) + bound

    def seal(self, number: int, plain: bytes) -> bytes:
        return self._cipher.seal(self._nonce(number), plain, self._associated)

    def opened(self, first: int, stored: bytes) -> Iterator[bytes]:
        for number, at in enumerate(range(0, len(stored), _SEALED_SEGMENT), first):
            segment = stored[at : at + _SEALED_SEGMENT]
            try:
                yield self._cipher.open(self._nonce(number), segment, self._associated)
            except BadTag:
                raise BadSealed("it was changed, or belongs elsewhere") from None

    def _nonce(self, number: int) -> bytes:
        return _NONCE.pack(number, number == self._foot.segments - 1)
