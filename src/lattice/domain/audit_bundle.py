"""The bundle of an export: a chain with its public keys and a signed end. Verified offline. Pure.

    #{"cluster":…,"format":…,"made":…,"made_for":…}     the first line
    the lines of the chain; entries that the reader may not see are hidden
    !{"key":…,"last":…,"link":…,"signature":…}          the last line

The signature of the last line covers the first line and the number of entries. So a bundle that was
cut is not valid. The public keys are in the chain: its first entry names the first one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from lattice.base.signatures import BadSignature, KeyRing
from lattice.domain.audit_chain import MARK, ChainBroken, ChainPoint, ChainVerifier, Sign

FORMAT = "lattice audit bundle 1"
_FIRST, _LAST = b"#", b"!"


class NoBundle(Exception):
    """The file is no bundle of an audit log."""


@dataclass(frozen=True, slots=True)
class BundleVerdict:
    """A verified bundle."""

    cluster: str
    entries: int
    link: bytes
    keys: tuple[str, ...]
    """Names of the keys that the chain trusts in the end."""
    signed_by: str
    made: str
    made_for: str


def first_line(cluster: str, made: str, made_for: str) -> bytes:
    record = {"cluster": cluster, "format": FORMAT, "made": made, "made_for": made_for}
    return _FIRST + json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def last_line(first: bytes, end: ChainPoint, sign: Sign) -> bytes:
    key, signature = sign(_message(first, end))
    return _last_line(end, key, signature)


def cluster_of(first: bytes) -> str:
    """The cluster that the first line names. Raises `NoBundle`."""
    return str(_header(first)["cluster"])


def verify_bundle(
    lines: Iterable[bytes],
    anchors: Mapping[int, bytes] | None = None,
    pinned: str = "",
    take: Callable[[bytes], None] | None = None,
) -> BundleVerdict:
    """Verify a bundle line by line. Raises `ChainBroken` and `NoBundle`.

    `pinned` is the name of a key that must have signed the end. `take` gets each line of the chain
    that fits; what it found holds only if the bundle is whole.
    """
    rest = iter(lines)
    first = next(rest, b"")
    header = _header(first)
    cluster = str(header["cluster"])
    verifier = ChainVerifier.from_beginning(cluster, anchors)
    last = b""
    for line in rest:
        if last:
            raise ChainBroken(verifier.point.sequence + 1, "lines follow the end of the bundle")
        if line.startswith(_LAST):
            last = line
        else:
            verifier.feed(line)
            if take is not None:
                take(line)
    verifier.finish()
    signed_by = _check_last(first, last, verifier)
    if pinned and pinned not in {signed_by, verifier.last_key}:
        raise ChainBroken(1, f"the log is signed by key {signed_by}, not by {pinned:.64}")
    return BundleVerdict(
        cluster=cluster,
        entries=verifier.point.sequence,
        link=verifier.point.link,
        keys=tuple(verifier.keys),
        signed_by=signed_by,
        made=str(header["made"]),
        made_for=str(header["made_for"]),
    )


def _header(first: bytes) -> dict[str, object]:
    try:
        record = json.loads(first.removeprefix(_FIRST))
        if not first.startswith(_FIRST) or record["format"] != FORMAT:
            raise NoBundle("it is not of this format")
        _ = record["cluster"], record["made"], record["made_for"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise NoBundle("its first line can't be read") from None
    found: dict[str, object] = record
    return found


def _check_last(first: bytes, last: bytes, verifier: ChainVerifier) -> str:
    """Return the name of the key that signed the end."""
    end, missing = verifier.point, verifier.point.sequence + 1
    try:
        record = json.loads(last.removeprefix(_LAST))
        key, signature = str(record["key"]), base64.b64decode(record["signature"], validate=True)
        stated = int(record["last"])
    except (ValueError, KeyError, TypeError, binascii.Error, RecursionError):
        raise ChainBroken(missing, "the signed end of the bundle is missing or damaged") from None
    if stated > end.sequence:
        raise ChainBroken(missing, f"it is missing: the bundle was made of {stated} entries")
    if last != _last_line(end, key, signature):
        raise ChainBroken(missing, "the signed end of the bundle does not fit")
    public = verifier.keys.get(key)
    if public is None:
        raise ChainBroken(missing, f"the bundle is signed by key {key:.16}, not trusted by the log")
    try:
        KeyRing((public,)).verify(key, _message(first, end), signature)
    except BadSignature:
        raise ChainBroken(missing, "the signature of the bundle's end is false") from None
    return key


def _message(first: bytes, end: ChainPoint) -> bytes:
    digest = hashlib.sha256(first).hexdigest()
    return MARK + f"bundle\n{digest}\n{end.sequence}\n{end.link.hex()}\n".encode()


def _last_line(end: ChainPoint, key: str, signature: bytes) -> bytes:
    record = {
        "key": key,
        "last": end.sequence,
        "link": end.link.hex(),
        "signature": base64.b64encode(signature).decode(),
    }
    return _LAST + json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n"
