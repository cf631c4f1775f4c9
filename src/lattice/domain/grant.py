"""A grant: one act, for one person, on one allocation, at one place, for a few seconds.

The server signs it after its own check. The agent and the root helper check it again before they
act. It is valid at one place, once. Where the text of the question matters, it carries a digest of
it. The threat model names its limit: a compromised server can name any owner.

Its form is `KEY.PAYLOAD.SIGNATURE`, the last two in unpadded base64url; the payload is JSON. The
signature itself is in `lattice.base.signatures`; this module only formats and strictly parses.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, fields
from enum import StrEnum

from lattice.base.strictjson import read_fields, read_json

LONGEST_LIFETIME_S = 60
_LEEWAY_S = 5
_LARGEST = 8192
_DOMAIN = b"lattice grant 1\n"
_ID = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"(?:[0-9a-f]{64})?")

UNTIMELY = "it is not valid at this time"

GATE = "gate"
"""The place of grants for the submit gate beside the server."""


class Act(StrEnum):
    """What can be granted. A verb of the helper, or a kind of stream, needs one of these."""

    ATTACH = "attach"
    READ_OUTPUT = "read_output"
    READ_COUNTERS = "read_counters"
    READ_METRICS = "read_metrics"
    READ_FACTS = "read_facts"
    PROBE_MOUNTS = "probe_mounts"
    DUMP_STACKS = "dump_stacks"
    SUBMIT = "submit"
    CANCEL = "cancel"
    CHANGE_NODES = "change_nodes"
    CHANGE_TENANT = "change_tenant"
    MAKE_RESERVATION = "make_reservation"
    REMOVE_RESERVATION = "remove_reservation"
    LIST_RESERVATIONS = "list_reservations"
    SHOW_RIGHTS = "show_rights"
    CLOSE_RECORDING = "close_recording"
    ECHO = "echo"
    CLOCK = "clock"
    """Never granted: setting a helper's time needs a signed time and no grant."""


class BadGrant(Exception):
    """Not a grant, or not for this act, place and time. The text is for the log."""


class Untimely(BadGrant):
    """A genuine grant for this act and place that is not valid by the checking clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the server permits."""

    id: str
    """32 random hex digits: a grant works once."""
    act: Act
    place: str
    """The node it is for, or `GATE`."""
    subject: str
    """The verified caller, for the audit record."""
    user: str
    """The Unix user that the act runs as; empty if it needs none."""
    job_id: int = 0
    """Slurm's job id; 0 if the act concerns no job."""
    started: int = 0
    """The start of the attempt, in Unix seconds; 0 if it doesn't matter."""
    digest: str = ""
    """SHA-256 of the question in hex, if its text matters."""
    issued: int
    expires: int

    def payload(self) -> bytes:
        """The signed bytes, without the domain prefix."""
        content = {name: getattr(self, name) for name in _NAMES}
        return json.dumps(content, separators=(",", ":")).encode()

    def fault(self, act: Act, location: str, now_s: float) -> str:
        """Why it is not valid for this, or an empty text."""
        if self.act is not act:
            return f"it grants {self.act.value}, not {act.value}"
        if self.place != location:
            return f"it is for {self.place}, not {location}"
        if not 0 < self.expires - self.issued <= LONGEST_LIFETIME_S:
            return "it lives too long"
        # Last, because only this fault can go away with time.
        if not self.issued - _LEEWAY_S <= now_s <= self.expires + _LEEWAY_S:
            return UNTIMELY
        return ""


_NAMES = sorted(each.name for each in fields(Grant))


def to_sign(payload: bytes) -> bytes:
    """The bytes to sign. The prefix keeps other signatures from passing as one of a grant."""
    return _DOMAIN + payload


def written(key: str, payload: bytes, signature: bytes) -> str:
    """The grant as text."""
    return f"{key}.{_encoded(payload)}.{_encoded(signature)}"


def read_written(text: str) -> tuple[str, bytes, bytes]:
    """Key name, payload and signature, unverified. Raises `BadGrant`."""
    parts = text.split(".") if len(text) <= _LARGEST else []
    if len(parts) != 3:
        raise BadGrant("not a grant")
    return parts[0], _decoded(parts[1]), _decoded(parts[2])


def read_payload(payload: bytes) -> Grant:
    """Parse a grant; every field must be present, of its type, and no other. Raises `BadGrant`."""
    try:
        grant = read_fields(read_json(payload), Grant)
    except ValueError as error:
        raise BadGrant(f"not a grant: {error}") from None
    if not _ID.fullmatch(grant.id) or not _DIGEST.fullmatch(grant.digest):
        raise BadGrant("id or digest is malformed")
    return grant


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise BadGrant("not a grant") from None
    if _encoded(raw) != text:
        raise BadGrant("not a grant")
    return raw
