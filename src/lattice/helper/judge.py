"""Decides whether a request is allowed: its peer, its grant, the role. The default is no.

The keys are read again when their file changes, so they can be replaced without a restart. Requests
about the clock are answered here: a child would only set its own clock.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from lattice.access.grants import GrantChecker
from lattice.base.ed25519 import PUBLIC_KEY_BYTES
from lattice.domain.grant import BadGrant, Grant, Untimely, read_payload, read_written
from lattice.domain.privileged import (
    Answer,
    BadQuestion,
    Challenge,
    HelperRole,
    NoteOutput,
    Outcome,
    Question,
    SetClock,
    Verb,
    digest_of,
    read_request,
)
from lattice.domain.signedtime import BadTime
from lattice.helper.journal import Peer
from lattice.helper.trusted_clock import ProvenClock

_MOST_KEYS = 8


@dataclass(frozen=True, slots=True)
class AskedGrant:
    """A request that may be answered."""

    verb: Verb
    question: Question
    grant: Grant | None
    """None for verbs that need no grant."""

    @property
    def user(self) -> str:
        """The user that the grant names; empty without a grant."""
        return self.grant.user if self.grant is not None else ""

    @property
    def job_id(self) -> int:
        """The job that the request is about; 0 for none."""
        if self.grant is not None:
            return self.grant.job_id
        return self.question.job_id if isinstance(self.question, NoteOutput) else 0


@dataclass(frozen=True, slots=True)
class GrantClaim:
    """The unverified verb and user of a request; used only for its place in the queue."""

    verb: str = ""
    user: str = ""


def claim_of(packet: bytes) -> GrantClaim:
    """The verb and the user from the grant; empty if they can't be parsed."""
    try:
        asked = read_unchecked(packet)
    except (BadQuestion, BadGrant):
        return GrantClaim()
    return GrantClaim(asked.verb.name, asked.user)


def read_unchecked(packet: bytes) -> AskedGrant:
    """Parse a request with a grant, for callers that need no check or have had one.

    Raises `BadQuestion`, `BadGrant`.
    """
    text, verb, question = read_request(packet)
    _, payload, _ = read_written(text)
    return AskedGrant(verb, question, read_payload(payload))


class Refusal(Exception):
    """`message` goes to the client, `reason` to the log."""

    def __init__(self, outcome: Outcome, message: str, reason: str, verb: str = "") -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.message = message
        self.reason = reason
        self.verb = verb


def read_keys(file: Path) -> list[bytes]:
    """Read public keys, one in base64 a line; `#` starts a comment. Raises `ValueError`, `OSError`.

    A user who can change the file can sign any grant, so only root may be able to change it.
    """
    for path in (file, file.parent):
        _refuse_writable(path)
    keys = []
    for line in file.read_text("ascii").splitlines():
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            raw = base64.b64decode(text, validate=True)
        except binascii.Error:
            raw = b""
        if len(raw) != PUBLIC_KEY_BYTES:
            raise ValueError(f"{file}: a line is no public key in base64")
        keys.append(raw)
    if not 0 < len(keys) <= _MOST_KEYS:
        raise ValueError(f"{file}: between 1 and {_MOST_KEYS} keys are needed")
    return keys


def _refuse_writable(path: Path) -> None:
    found = path.stat()
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & 0o022:
        owner, mode = found.st_uid, found.st_mode & 0o7777
        raise ValueError(
            f"{path}: others than root can change it (owner {owner}, mode {mode:04o}); "
            f"run `chown root {path}` and `chmod go-w {path}`"
        )


class GrantJudge:
    """One for the helper's lifetime: it remembers which grants were used."""

    def __init__(
        self,
        *,
        role: HelperRole,
        location: str,
        allowed_uid: int,
        keys_file: Path,
        offered: Collection[str],
        clock: ProvenClock,
        on_keys: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._role = role
        self._allowed_uid = allowed_uid
        self._keys_file = keys_file
        self._offered = frozenset(offered)
        self._clock = clock
        self._on_keys = on_keys
        self._checker = GrantChecker(location, clock, read_keys(keys_file))
        self._stamp = self._file_stamp()

    def admit(self, peer: Peer) -> None:
        """Return if this process may send requests. Raises `Refusal`."""
        if peer.uid != self._allowed_uid:
            raise Refusal(Outcome.REFUSED, "not a user this helper serves", "peer uid")

    def judge(self, packet: bytes) -> AskedGrant:
        """Check a request and mark its grant as used. Raises `Refusal`."""
        try:
            text, verb, question = read_request(packet)
        except BadQuestion as error:
            raise Refusal(Outcome.BAD_QUESTION, str(error), str(error)) from None
        if verb.role is not self._role:
            message = f"the verb `{verb.name}` is not one of a {self._role.value} helper"
            raise Refusal(Outcome.NOT_OFFERED, message, message, verb.name)
        if verb.name not in self._offered and verb.group is not None:
            message = f"this gate does not allow `{verb.group.value}`"
            raise Refusal(Outcome.NOT_OFFERED, message, message, verb.name)
        if verb.name not in self._offered:
            message = f"the verb `{verb.name}` is not built into this helper"
            raise Refusal(Outcome.NOT_OFFERED, message, message, verb.name)
        if not verb.granted:
            if text:
                message = "no grant belongs to this"
                raise Refusal(Outcome.BAD_QUESTION, message, message, verb.name)
            return AskedGrant(verb, question, None)
        self._refresh_keys()
        return AskedGrant(verb, question, self._granted(text, verb, question))

    def answered(self, asked: AskedGrant) -> Answer | None:
        """Answer a request about the clock; None for all others."""
        question = asked.question
        if isinstance(question, Challenge):
            return Answer(outcome=Outcome.DONE, output=self._clock.challenge())
        if not isinstance(question, SetClock):
            return None
        self._refresh_keys()
        try:
            moved_s = self._clock.prove(self._checker.read_time(question.signed))
        except BadTime as error:
            message = f"no time to go by: {error}"
            raise Refusal(Outcome.REFUSED, message, str(error), asked.verb.name) from None
        return Answer(outcome=Outcome.DONE, message=f"moved by {moved_s:+.3f} s")

    def _granted(self, text: str, verb: Verb, question: Question) -> Grant:
        try:
            # Grants used before a restart are not remembered, so grants from before it are refused.
            return self._checker.check(
                text, verb.act, digest=digest_of(question), since_s=self._clock.begun_s
            )
        except Untimely as error:
            raise self._untimely(str(error), verb) from None
        except BadGrant as error:
            raise Refusal(Outcome.REFUSED, "no grant for this", str(error), verb.name) from None

    def _untimely(self, reason: str, verb: Verb) -> Refusal:
        # This reveals nothing: the client can read the node's clock itself.
        now = self._clock.now()
        message = f"no grant for this at {now:%H:%M:%S} UTC, the time of this helper: {reason}"
        return Refusal(Outcome.UNTIMELY, message, reason, verb.name)

    def _file_stamp(self) -> tuple[int, int, int]:
        found = self._keys_file.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _refresh_keys(self) -> None:
        """Read the keys again if their file changed; if that fails, the old keys stay."""
        try:
            stamp = self._file_stamp()
            if stamp == self._stamp:
                return
            self._checker.trust(read_keys(self._keys_file))
            self._stamp = stamp
            self._on_keys("read again")
        except (OSError, ValueError) as error:
            self._on_keys(f"not read: {error}")
