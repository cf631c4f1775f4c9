"""A site that is well, for doctor. A test replaces what it breaks: a value, or an error."""

# mypy: disable-error-code="no-any-return"
# The table of facts has values of many types.

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from lattice.domain.object_lock import LockMode, ObjectLock
from lattice.domain.quorum import QuorumMember
from lattice.features.doctor.service.facts import (
    AgentTrust,
    BackupFacts,
    CertificateFacts,
    ControllerFacts,
    FolderFacts,
    LockFacts,
    ProcessFacts,
    ReplicaFacts,
    RetentionFacts,
    RightFacts,
    SchemaFacts,
    SignInFacts,
    StateFacts,
)

GIB = 2**30
NOW = datetime(2026, 11, 15, 14, 2, 11, tzinfo=UTC)


class Hangs:
    """An engine that never answers."""


def sound_facts(now: datetime = NOW) -> dict[str, Any]:
    """What each method of the port returns."""
    certificate = CertificateFacts(
        file="tls.crt", expires=now + timedelta(days=90), names=("lattice1.example.com",), links=2
    )
    folder = FolderFacts(folder="/var/lib/lattice", free_bytes=40 * GIB, total_bytes=100 * GIB)
    members = tuple(
        QuorumMember(
            name=f"e{number}:2379", version="3.5.9", size_bytes=2**20, is_leader=number == 1,
            has_leader=True,
        )
        for number in (1, 2, 3)
    )  # fmt: skip
    return {
        "state": StateFacts(lasts=True, single=False),
        "sign_in": SignInFacts(mode="issuer"),
        "process": ProcessFacts(
            open_files=80,
            most_files=65536,
            longest_pause_s=0.01,
            failures={"slurm": 0},
            failed_s_ago={},
        ),
        "people_names": ("lattice1.example.com",),
        "controller": ControllerFacts(release="25.05.3", cluster="alps"),
        "controller_ahead_s": -0.5,
        "accounting": "25.05.3",
        "schemas": SchemaFacts(
            live="v0.0.43", live_read_as="v0.0.43", past="v0.0.43", past_read_as="v0.0.43"
        ),
        "rights": RightFacts(hidden=None),
        "members": members,
        "backups": BackupFacts(every_h=6, newest=now - timedelta(hours=2), location="backups"),
        "object_folder": folder,
        "archive_lock": LockFacts(
            bucket="site-audit", lock=ObjectLock(LockMode.COMPLIANCE, 2555), least_days=2555
        ),
        "sensitive_lock": RetentionFacts(
            bucket="site-sensitive", lock=ObjectLock(), removed_days=90
        ),
        "state_folder": folder,
        "log_folder": folder,
        "people_certificate": certificate,
        "authority": CertificateFacts(file="ca.crt", expires=now + timedelta(days=3000)),
        "provider_keys": 2,
        "munge": "lattice",
        "token_judge": "unix:/run/slurmrestd-jwt.socket",
        "replicas": (ReplicaFacts(id="s2", version="1.0"),),
        "echo": 0.012,
        "trust": (
            AgentTrust(node="n1", expires=now + timedelta(hours=20), issued=now),
        ),
    }  # fmt: skip


class InMemoryInspection:
    """The port `Inspection`. `facts` has a value, an exception, or `Hangs` for each method."""

    def __init__(self, now: datetime = NOW) -> None:
        self.facts = sound_facts(now)
        self.asked: list[str] = []

    @property
    def state(self) -> StateFacts:
        return self.facts["state"]

    @property
    def sign_in(self) -> SignInFacts:
        return self.facts["sign_in"]

    def process(self) -> ProcessFacts:
        return self.facts["process"]

    def people_names(self) -> tuple[str, ...]:
        return self.facts["people_names"]

    async def controller(self) -> ControllerFacts:
        return await self._of("controller")

    async def controller_ahead_s(self) -> float | None:
        return await self._of("controller_ahead_s")

    async def accounting(self) -> str:
        return await self._of("accounting")

    async def schemas(self) -> SchemaFacts:
        return await self._of("schemas")

    async def rights(self) -> RightFacts:
        return await self._of("rights")

    async def backups(self) -> BackupFacts:
        return await self._of("backups")

    async def members(self) -> tuple[QuorumMember, ...]:
        return await self._of("members")

    async def object_folder(self) -> FolderFacts:
        return await self._of("object_folder")

    async def archive_lock(self) -> LockFacts:
        return await self._of("archive_lock")

    async def sensitive_lock(self) -> RetentionFacts:
        return await self._of("sensitive_lock")

    async def state_folder(self) -> FolderFacts:
        return await self._of("state_folder")

    async def log_folder(self) -> FolderFacts:
        return await self._of("log_folder")

    async def people_certificate(self) -> CertificateFacts:
        return await self._of("people_certificate")

    async def authority(self) -> CertificateFacts:
        return await self._of("authority")

    async def provider_keys(self) -> int:
        return await self._of("provider_keys")

    async def munge(self) -> str:
        return await self._of("munge")

    async def token_judge(self) -> str:
        return await self._of("token_judge")

    async def replicas(self) -> tuple[ReplicaFacts, ...]:
        return await self._of("replicas")

    async def echo(self, node: str) -> float:
        return await self._of(f"echo {node}" if f"echo {node}" in self.facts else "echo")

    async def trust(self) -> tuple[AgentTrust, ...]:
        return await self._of("trust")

    async def _of(self, name: str) -> Any:
        self.asked.append(name)
        found = self.facts[name]
        if isinstance(found, BaseException):
            raise found
        if found is Hangs:
            await asyncio.Event().wait()
        return found
