"""Makes and checks tokens of jobs. No I/O.

The key of grants signs them, with a prefix of their own. So every replica takes them, also while
one key follows another, and no token of a person, grant or seal passes as one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from lattice.access.grants import GrantSigner
from lattice.base.clock import Clock
from lattice.base.signatures import BadSignature, KeyRing
from lattice.domain.attempts import JobAttempt
from lattice.domain.grant import BadGrant, read_written, written
from lattice.domain.job_token import (
    LONGEST_LIFETIME_S,
    BadJobToken,
    JobToken,
    read_payload,
    to_sign,
)


class JobTokens:
    """Of one cluster, whose name is known once Slurm has answered."""

    def __init__(self, signer: GrantSigner, clock: Clock, cluster: Callable[[], str]) -> None:
        self._signer = signer
        self._ring = KeyRing(signer.public_keys)
        self._clock = clock
        self._cluster = cluster

    def issue(self, node: str, run: JobAttempt) -> tuple[str, JobToken]:
        """A token for this run, as text and as what it says."""
        now = int(self._clock.now().timestamp())
        token = JobToken(
            id=secrets.token_hex(16),
            cluster=self._cluster(),
            node=node,
            allocation=run.allocation.ref,
            attempt=run.attempt.number,
            job_id=run.allocation.job_id,
            user=run.allocation.user,
            issued=now,
            expires=now + LONGEST_LIFETIME_S,
        )
        payload = token.payload()
        name, signature = self._signer.sign_job_token(payload)
        return written(name, payload, signature), token

    def check(self, text: str, node: str) -> JobToken:
        """What a genuine token of this node says. Raises `BadJobToken`."""
        try:
            key, payload, signature = read_written(text)
            self._ring.verify(key, to_sign(payload), signature)
        except (BadGrant, BadSignature) as error:
            raise BadJobToken(str(error)) from None
        token = read_payload(payload)
        fault = token.fault(self._cluster(), node, self._clock.now().timestamp())
        if fault:
            raise BadJobToken(fault)
        return token
