r"""The chain of the audit log: links, seals, and a verifier that reads one line at a time. Pure.

    LINK {"act":…}       an entry and its link
    LINK -HASH           the same without the content: only the hash of another's entry
    ={"head":…}          the seal of all lines since the seal before: head, key and signature

    hash of an entry  = sha256("lattice audit entry 1\n", bytes of the entry)
    link of an entry  = sha256("lattice audit link 1\n", link before, hash of the entry)
    before the first  = sha256("lattice audit chain 1\n", id of the cluster)

Each line carries its link, so the verifier names the first bad entry and not only its batch.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from lattice.base.signatures import BadSignature, KeyRing, key_name
from lattice.domain.audit import (
    AuditAct,
    AuditEntry,
    BadEntry,
    canonical,
    decode,
    encode,
    named_keys,
)

MARK = b"lattice audit 1\n"
"""The prefix of all that is signed for the log, so that it can't pass as anything else."""
HIDDEN = b"-"
SEAL = b"="
LINK_HEX = 64
_KEY_CHANGE = b'"act":"%s"' % AuditAct.KEY_CHANGE.value.encode()

Sign = Callable[[bytes], tuple[str, bytes]]
"""Returns the key's name and its signature."""


@dataclass(frozen=True, slots=True)
class ChainPoint:
    """The chain up to an entry: its sequence and its link."""

    sequence: int
    link: bytes


class ChainBroken(Exception):
    """The chain is not as it was written. `sequence` is the first bad entry."""

    def __init__(self, sequence: int, problem: str) -> None:
        super().__init__(f"entry {sequence}: {problem}")
        self.sequence = sequence
        self.problem = problem


def genesis(cluster: str) -> ChainPoint:
    """The point before the first entry of a cluster."""
    return ChainPoint(0, hashlib.sha256(b"lattice audit chain 1\n" + cluster.encode()).digest())


def hash_of(line: bytes) -> bytes:
    return hashlib.sha256(b"lattice audit entry 1\n" + line).digest()


def link_of(before: bytes, entry_hash: bytes) -> bytes:
    return hashlib.sha256(b"lattice audit link 1\n" + before + entry_hash).digest()


def seal_message(cluster: str, point: ChainPoint) -> bytes:
    """What the signature of a seal covers."""
    return MARK + f"seal\n{cluster}\n{point.sequence}\n{point.link.hex()}\n".encode()


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries that were committed together, as they are stored."""

    first: int
    end: ChainPoint
    text: bytes
    entries: tuple[AuditEntry, ...]


def make_batch(
    cluster: str, before: ChainPoint, entries: Iterable[AuditEntry], sign: Sign
) -> Batch:
    """Chain these entries behind a point, and seal them."""
    lines: list[bytes] = []
    point, members = before, tuple(entries)
    for each in members:
        content = encode(each)
        if each.sequence != point.sequence + 1:
            raise ValueError(f"entry {each.sequence} can't follow {point.sequence}")
        point = ChainPoint(each.sequence, link_of(point.link, hash_of(content)))
        lines.append(entry_line(point.link, content))
    key, signature = sign(seal_message(cluster, point))
    lines.append(_seal_line(point, key, signature))
    return Batch(before.sequence + 1, point, b"".join(lines), members)


def entry_line(link: bytes, content: bytes) -> bytes:
    return b"%s %s\n" % (link.hex().encode(), content)


def hidden_line(line: bytes) -> bytes:
    """The same line with the hash of the entry only: it still fits into the chain."""
    link, _, content = line.rstrip(b"\n").partition(b" ")
    if content.startswith(HIDDEN):
        return line
    return b"%s %s%s\n" % (link, HIDDEN, hash_of(content).hex().encode())


def entry_in(line: bytes) -> AuditEntry | None:
    """The entry of a line; None for a seal or a hidden one. Raises `BadEntry`."""
    if line.startswith(SEAL):
        return None
    content = line.rstrip(b"\n")[LINK_HEX + 1 :]
    return None if content.startswith(HIDDEN) else decode(content)


def read_batch(text: bytes) -> Batch:
    """A stored batch, unverified. Raises `BadEntry`."""
    *lines, last = text.splitlines(keepends=True) or [b""]
    entries = tuple(each for line in lines if (each := entry_in(line)) is not None)
    seal = read_seal(last)
    if seal is None or not entries or entries[-1].sequence != seal.point.sequence:
        raise BadEntry("the batch is not whole")
    return Batch(entries[0].sequence, seal.point, text, entries)


@dataclass(frozen=True, slots=True)
class AuditSeal:
    """The signed end of a batch."""

    point: ChainPoint
    key: str
    signature: bytes


def _seal_line(point: ChainPoint, key: str, signature: bytes) -> bytes:
    record = {
        "head": point.link.hex(),
        "key": key,
        "last": point.sequence,
        "signature": base64.b64encode(signature).decode(),
    }
    return SEAL + canonical(record).encode() + b"\n"


def read_seal(line: bytes) -> AuditSeal | None:
    """The seal in a line, unverified; None if it can't be parsed."""
    try:
        record = json.loads(line.removeprefix(SEAL))
        signature = base64.b64decode(record["signature"], validate=True)
        point = ChainPoint(int(record["last"]), bytes.fromhex(record["head"]))
        seal = AuditSeal(point, str(record["key"]), signature)
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        return None
    # Only the exact form counts, so that no bit of a seal can change unnoticed.
    return seal if _seal_line(point, seal.key, signature) == line else None


@dataclass(slots=True)
class ChainVerifier:
    """Reads a chain line by line in constant memory. `feed` raises `ChainBroken`.

    At the beginning of a chain the first entry names the first key, and the caller decides whether
    to trust that key. From any other point on the trusted keys must be given.
    """

    cluster: str
    point: ChainPoint
    keys: dict[str, bytes] = field(default_factory=dict)
    """Trusted public keys by name."""
    anchors: Mapping[int, bytes] = field(default_factory=dict)
    """Links that were written outside, by sequence."""
    first_key: str = ""
    last_key: str = ""
    """The key of the newest seal."""
    sealed: int = -1
    """The sequence of the newest seal."""
    _named: list[bytes] = field(default_factory=list)
    _rings: dict[str, KeyRing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sealed = self.point.sequence

    @classmethod
    def from_beginning(
        cls, cluster: str, anchors: Mapping[int, bytes] | None = None
    ) -> ChainVerifier:
        return cls(cluster, genesis(cluster), anchors=anchors or {})

    def feed(self, line: bytes) -> None:
        """Check the next line."""
        if line.startswith(SEAL):
            self._check_seal(line)
        else:
            self._check_entry(line)

    def feed_all(self, text: bytes) -> None:
        """Check the next lines."""
        for line in text.splitlines(keepends=True):
            self.feed(line)

    def finish(self) -> None:
        """Check that the chain ends with a seal, and not before an anchor."""
        if self.sealed != self.point.sequence:
            raise ChainBroken(self.sealed + 1, "it has no seal: the log is cut here")
        later = max(self.anchors, default=0)
        if later > self.point.sequence:
            raise ChainBroken(
                self.point.sequence + 1,
                f"it is missing: the log ends here, but an anchor outside has entry {later} "
                "(truncated or rolled back)",
            )

    def _check_entry(self, line: bytes) -> None:
        expected = self.point.sequence + 1
        link, space, content = line[:LINK_HEX], line[LINK_HEX : LINK_HEX + 1], line[LINK_HEX + 1 :]
        if space != b" " or not content.endswith(b"\n"):
            raise ChainBroken(expected, "it is cut or damaged")
        content = content[:-1]
        if content.startswith(HIDDEN):
            entry_hash = _exact_hex(content[1:])
        else:
            self._check_sequence(content, expected)
            entry_hash = hash_of(content)
        point = ChainPoint(expected, link_of(self.point.link, entry_hash))
        if point.link.hex().encode() != link:
            raise ChainBroken(expected, "it was changed, or the entry before it was replaced")
        anchor = self.anchors.get(expected)
        if anchor is not None and anchor != point.link:
            raise ChainBroken(
                expected, "an anchor outside has another link for it: rolled back or rewritten"
            )
        if _KEY_CHANGE in content:
            self._collect_keys(content, expected)
        self.point = point

    def _check_sequence(self, content: bytes, expected: int) -> None:
        try:
            found = json.loads(content)["sequence"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ChainBroken(expected, "it was changed: it can't be parsed") from None
        if type(found) is not int or found < expected:
            raise ChainBroken(expected, f"entry {found!r:.40} is here in its stead")
        if found > expected:
            raise ChainBroken(expected, f"it is missing: entry {found} follows")

    def _collect_keys(self, content: bytes, expected: int) -> None:
        try:
            entry = decode(content)
            if entry.act is AuditAct.KEY_CHANGE:
                self._named.extend(named_keys(entry))
        except BadEntry:
            raise ChainBroken(expected, "it names no key") from None
        if expected == 1 and not self.keys:
            # The first key vouches for itself: the caller decides on `first_key`.
            self._trust_named(expected)

    def _check_seal(self, line: bytes) -> None:
        first = self.sealed + 1
        seal = read_seal(line)
        if seal is None:
            raise ChainBroken(first, "the seal of its batch is damaged")
        if first > self.point.sequence:
            raise ChainBroken(first, "a seal without entries is here in its stead")
        if seal.point.sequence != self.point.sequence:
            missing = self.point.sequence + 1
            more = seal.point.sequence > self.point.sequence
            problem = "it is missing" if more else "it was added to its batch"
            raise ChainBroken(missing if more else max(first, seal.point.sequence + 1), problem)
        if seal.point.link != self.point.link:
            raise ChainBroken(first, "it or its batch was rewritten: the seal has another head")
        self._check_signature(seal, first)
        self.sealed = self.point.sequence
        self.first_key = self.first_key or seal.key
        self.last_key = seal.key
        self._trust_named(first)

    def _check_signature(self, seal: AuditSeal, first: int) -> None:
        public = self.keys.get(seal.key)
        if public is None:
            raise ChainBroken(first, f"its batch is signed by key {seal.key:.16}, not trusted here")
        ring = self._rings.get(seal.key)
        if ring is None:
            ring = self._rings[seal.key] = KeyRing((public,))
        try:
            ring.verify(seal.key, seal_message(self.cluster, seal.point), seal.signature)
        except BadSignature:
            raise ChainBroken(first, "the signature of its batch is false") from None

    def _trust_named(self, sequence: int) -> None:
        for public in self._named:
            try:
                KeyRing((public,))
            except ValueError:
                raise ChainBroken(sequence, "it names a key that nobody can trust") from None
            self.keys[key_name(public)] = public
        self._named.clear()


def _exact_hex(text: bytes) -> bytes:
    """The bytes of lowercase hex digits; empty for any other text."""
    try:
        found = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""
    return found if found.hex().encode() == text else b""
