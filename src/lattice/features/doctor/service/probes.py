"""What an examination does with the engines: it writes something of its own, reads and removes it.

A probe raises `NotUsed` where the site has no such engine.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from lattice.base.errors import PermissionRefused
from lattice.domain.administration import GateRights
from lattice.domain.metricstore import MetricStore, SeriesPoints
from lattice.domain.objects import ObjectStore, key_of
from lattice.domain.state import Delete, Put
from lattice.domain.submission import CancelQuestion, SubmitGate, Submitter
from lattice.features.doctor.service.measured import WITHIN_S, NotUsed
from lattice.foundation.foundation import Foundation

PROBE = "doctor"
"""The first part of every key that a probe writes."""
NEWEST_QUERY = 'max(timestamp({__name__="lattice_cpu_seconds_total"}))'
_METRIC = "lattice_doctor_probe"
_BOUND = b"lattice doctor probe"
"""What a probe of the site's keys is bound to."""
_NOBODY = "lattice-doctor-nobody"
"""No site has this user."""


class StateProbe:
    """Reads and changes the agreed state, below a key of its own."""

    def __init__(self, foundation: Foundation) -> None:
        self._store = foundation.state
        self._key = f"{PROBE}/{foundation.replica}"

    async def read(self) -> bool:
        await self._store.get(self._key)
        return True

    async def write(self) -> bool:
        revision = await self._store.commit([], [Put(self._key, b"{}")])
        entry = await self._store.get(self._key)
        await self._store.commit([], [Delete(self._key)])
        return revision is not None and entry is not None


class MetricProbe:
    """Asks the metric store and writes one sample of a series of its own."""

    def __init__(self, store: MetricStore | None, replica: str, now_s: Callable[[], float]) -> None:
        self._store = store
        self._replica = replica
        self._now_s = now_s

    async def query(self) -> bool:
        await self._there().query("vector(1)", at=self._now_s(), within_s=WITHIN_S)
        return True

    async def write(self) -> bool:
        labels = {"__name__": _METRIC, "replica": self._replica}
        await self._there().write([SeriesPoints(labels, ((self._now_s(), 1.0),))])
        return True

    async def newest(self) -> float | None:
        """When the newest sample of a job was measured; None: the store has none of late."""
        found = await self._there().query(NEWEST_QUERY, at=self._now_s(), within_s=WITHIN_S)
        return next((each.points[-1][1] for each in found if each.points), None)

    def _there(self) -> MetricStore:
        if self._store is None:
            raise NotUsed("no metric store")
        return self._store


class ObjectProbe:
    """Stores an object, reads it, finds it in a list, and removes it."""

    def __init__(self, store: ObjectStore | None, replica: str) -> None:
        self._store = store
        self._key = key_of(PROBE, replica, "probe")
        self._body = replica.encode()

    async def write(self) -> bool:
        await self._there().put(self._key, self._body)
        return True

    async def read(self) -> bool:
        return await self._there().read(self._key) == self._body

    async def listed(self) -> bool:
        store = self._there()
        return self._key in [each.key async for each in store.listing(self._key)]

    async def remove(self) -> None:
        await self._there().delete(self._key)

    def _there(self) -> ObjectStore:
        if self._store is None:
            raise NotUsed("no object store")
        return self._store


class SealingProbe:
    """Wraps and unwraps a secret of its own, and stores one in the sensitive bucket."""

    def __init__(self, foundation: Foundation) -> None:
        self._base = foundation
        self._objects = ObjectProbe(foundation.sensitive_objects, foundation.replica)

    async def wraps(self) -> bool:
        """True if the site's keys give back what they wrapped."""
        keys = self._base.site_keys
        if keys is None:
            raise NotUsed("no keys of the site")
        secret = secrets.token_bytes(32)
        return await keys.unwrap(await keys.wrap(secret, _BOUND), _BOUND) == secret

    async def older(self) -> int:
        """How many data keys are wrapped by an older key of the site."""
        site_keys, data_keys = self._base.site_keys, self._base.data_keys
        if site_keys is None or data_keys is None:
            raise NotUsed("no keys of the site")
        newest = await site_keys.newest()
        return sum(record.site_key != newest for _, record in await data_keys.records())

    async def stores(self) -> bool:
        """True if the bucket gives back what was stored."""
        await self._objects.write()
        found = await self._objects.read()
        await self._objects.remove()
        return found


async def gate_rights(foundation: Foundation) -> GateRights:
    """What the gate may change in Slurm."""
    if foundation.gate is None:
        raise NotUsed("no gate")
    return await foundation.administration.rights()


async def is_gate_well(gate: SubmitGate | None) -> bool:
    """True if the gate refuses to act for a user that does not exist.

    It checks the grant before the user, so the refusal shows that it knows the server's key.
    """
    if gate is None:
        raise NotUsed("no gate")
    try:
        await gate.cancel(Submitter(_NOBODY, _NOBODY), CancelQuestion(jobs=("1",)))
    except PermissionRefused:
        return True
    return False
