"""Makes and checks grants: the signer of a server, the checker of an agent or a helper. No I/O.

A grant is accepted once. The checker remembers each until it has expired, and refuses new ones
before it forgets one. That holds for any change of its clock.

The same keys sign the time, for helpers on nodes with wrong clocks, the seals of logs, and the
audit log.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime

from lattice.base.clock import Clock
from lattice.base.signatures import BadSignature, KeyRing, SigningKey
from lattice.domain.audit_chain import MARK
from lattice.domain.grant import (
    LONGEST_LIFETIME_S,
    UNTIMELY,
    Act,
    BadGrant,
    Grant,
    Untimely,
    read_payload,
    read_written,
    to_sign,
    written,
)
from lattice.domain.job_token import to_sign as job_token_to_sign
from lattice.domain.signedtime import BadTime, SignedTime
from lattice.domain.signedtime import read_payload as read_time_payload
from lattice.domain.signedtime import to_sign as time_to_sign

TTL_S = 30
SEAL_MARK = b"lattice seal 1\n"
"""The prefix of all that `sign_seal` signs, so that it can't pass as a grant or a time."""
_MOST_REMEMBERED = 65_536
# Later than that, every checker refuses a grant for its time alone.
_REMEMBERED_AFTER_S = LONGEST_LIFETIME_S


class GrantSigner:
    """Signs what the server has decided. Agents need its `public_keys`."""

    def __init__(self, key: SigningKey, clock: Clock, also_believed: Iterable[bytes] = ()) -> None:
        self._key = key
        self._clock = clock
        self.public_keys: tuple[bytes, ...] = tuple(dict.fromkeys((key.public, *also_believed)))

    def issue(
        self,
        act: Act,
        target: str,
        *,
        subject: str,
        user: str = "",
        job_id: int = 0,
        started: int = 0,
        digest: str = "",
        ttl_s: int = TTL_S,
    ) -> str:
        """A grant for one act, once, for one target. `subject` is the verified caller."""
        now = int(self._clock.now().timestamp())
        grant = Grant(
            id=secrets.token_hex(16),
            act=act,
            place=target,
            subject=subject,
            user=user,
            job_id=job_id,
            started=started,
            digest=digest,
            issued=now,
            expires=now + min(ttl_s, LONGEST_LIFETIME_S),
        )
        payload = grant.payload()
        return written(self._key.name, payload, self._key.sign(to_sign(payload)))

    def sign_time(self, target: str, nonce: str) -> str:
        """This server's signed time, for the helper of that target that drew this nonce."""
        now_ms = int(self._clock.now().timestamp() * 1000)
        payload = SignedTime(place=target, nonce=nonce, time_ms=now_ms).payload()
        return written(self._key.name, payload, self._key.sign(time_to_sign(payload)))

    def sign_job_token(self, payload: bytes) -> tuple[str, bytes]:
        """The key's name and its signature of a token of a job."""
        return self._key.name, self._key.sign(job_token_to_sign(payload))

    def sign_seal(self, message: bytes) -> tuple[str, bytes]:
        """The key's name and its signature. A prefix of its own marks the purpose."""
        return self._key.name, self._key.sign(SEAL_MARK + message)

    def sign_audit(self, message: bytes) -> tuple[str, bytes]:
        """The same for the audit log. Raises `ValueError` for a message without its mark."""
        if not message.startswith(MARK):
            raise ValueError("this is no message of the audit log")
        return self._key.name, self._key.sign(message)


class GrantChecker:
    """Checks grants for one target, and accepts each once."""

    def __init__(
        self,
        target: str,
        clock: Clock,
        public_keys: Iterable[bytes] = (),
        *,
        most_remembered: int = _MOST_REMEMBERED,
    ) -> None:
        self._target = target
        self._clock = clock
        self._ring = KeyRing(public_keys)
        self._used: dict[str, int] = {}
        self._forgotten_s = 0
        """Grants that expired by then are not remembered any more, and never accepted."""
        self._most_remembered = most_remembered

    @property
    def key_names(self) -> frozenset[str]:
        return self._ring.names

    def now(self) -> datetime:
        """The time by which grants are checked here."""
        return self._clock.now()

    def trust(self, public_keys: Iterable[bytes]) -> None:
        """Trust only these keys from now on. Raises `ValueError` for an invalid key."""
        self._ring = KeyRing(public_keys)

    def check(self, text: str, act: Act, *, digest: str = "", since_s: int = 0) -> Grant:
        """The grant, now used up. Raises `BadGrant` or `Untimely`; the text is for the log.

        `digest` is that of the received question, if its text matters. The caller compares the job
        and its owner itself. A grant issued before `since_s` may have been used before this checker
        began.
        """
        key, payload, signature = read_written(text)
        try:
            self._ring.verify(key, to_sign(payload), signature)
        except BadSignature as error:
            raise BadGrant(str(error)) from None
        grant = read_payload(payload)
        now_s = self._clock.now().timestamp()
        if fault := grant.fault(act, self._target, now_s):
            raise (Untimely if fault == UNTIMELY else BadGrant)(fault)
        if grant.digest != digest:
            raise BadGrant("it is for another question")
        if grant.issued < since_s:
            raise Untimely("it is from before this helper began")
        self._use(grant, now_s)
        return grant

    def read_time(self, text: str) -> SignedTime:
        """A server's signed time for this target. Raises `BadTime`."""
        try:
            key, payload, signature = read_written(text)
            self._ring.verify(key, time_to_sign(payload), signature)
        except (BadGrant, BadSignature) as error:
            raise BadTime(str(error)) from None
        signed = read_time_payload(payload)
        if signed.place != self._target:
            raise BadTime(f"it is for {signed.place}, not {self._target}")
        return signed

    def _use(self, grant: Grant, now_s: float) -> None:
        if grant.id in self._used or grant.expires <= self._forgotten_s:
            raise BadGrant("it was used before")
        if len(self._used) >= self._most_remembered:
            # A clock that is set back later must not make them valid again.
            over = now_s - _REMEMBERED_AFTER_S
            past = [expires for expires in self._used.values() if expires < over]
            self._forgotten_s = max((self._forgotten_s, *past))
            self._used = {each: expires for each, expires in self._used.items() if expires >= over}
        if len(self._used) >= self._most_remembered:
            raise BadGrant("too many grants at once")
        self._used[grant.id] = grant.expires
