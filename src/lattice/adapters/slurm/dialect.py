"""Chooses the schema version: the highest that slurmrestd offers and Lattice supports.

slurmrestd's own list of paths decides. The choice is separate for slurmctld and slurmdbd, because a
site may load only one plugin. After an upgrade the list is read again. It may have happened when
slurmrestd has closed its connections, or a path is gone; besides, the list is read every ten
minutes.

If all versions on offer are newer, the oldest of them is read like the newest that Lattice
supports, with a warning. It is refused if slurmrestd's description lacks a field that Lattice
can't do without.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.adapters.slurm.answer import SlurmRefused, loosely
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema.decoder import Schema
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable

_PATH = re.compile(r"/(slurm|slurmdb)/(v\d+\.\d+\.\d+)/([a-z]+)(/?)")
_TIMEOUT_S = 10.0
_READ_AGAIN_S = 600.0
_NEEDED = {
    ("slurm", "jobs"): ("job_id", "user_name", "account", "job_state", "submit_time", "nodes"),
    ("slurm", "nodes"): ("name", "state"),
    ("slurmdb", "jobs"): ("job_id", "user", "account", "state", "time", "nodes"),
    ("slurmdb", "accounts"): ("name",),
    ("slurmdb", "associations"): ("account", "cluster", "user"),
}
"""The fields without which a record says nothing."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class VersionOffer:
    """A path, the names of its query parameters, and the fields of its records.

    Without a description of the records there are no fields.
    """

    path: str
    parameters: frozenset[str] = frozenset()
    fields: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One side of slurmrestd in the chosen version, which `schema` reads."""

    schema: Schema
    lists: Mapping[str, VersionOffer]
    version: str

    def path(self, name: str) -> str:
        """The full path of a list such as `jobs`, as the server writes it."""
        return self.lists[name].path

    def is_at_least(self, version: str) -> bool:
        """True from this schema version on."""
        return _order(self.version) >= _order(version)

    def offers(self, name: str, parameter: str) -> bool:
        """True if the list takes this query parameter: an unknown one is an error."""
        return parameter in self.lists[name].parameters


class Dialects:
    """Finds and caches the dialect of each side."""

    def __init__(self, rest: SlurmRest, known: Iterable[Schema], clock: Clock) -> None:
        self._rest = rest
        self._clock = clock
        self._read_at = -math.inf
        self._known = {schema.version: schema for schema in known}
        self._lock = asyncio.Lock()
        self._losses = 0
        self._chosen: dict[str, Dialect] | None = None

    async def live(self) -> Dialect:
        """For slurmctld. Raises `Unavailable`."""
        return await self._side("slurm", ("jobs", "nodes", "diag"))

    async def past(self) -> Dialect:
        """For slurmdbd. Raises `Unavailable`."""
        return await self._side("slurmdb", ("jobs", "accounts", "associations"))

    def forget(self) -> None:
        """Read the list again next time."""
        self._chosen = None

    async def _side(self, side: str, needed: tuple[str, ...]) -> Dialect:
        async with self._lock:
            dialect = (await self._current()).get(side)
            if dialect is None or not all(name in dialect.lists for name in needed):
                self._chosen = None
                raise SlurmRefused(
                    f"slurmrestd offers no version of /{side} that Lattice knows",
                    hint=f"Lattice knows {', '.join(sorted(self._known))}; "
                    "load the matching openapi plugins in slurmrestd.",
                )
            return dialect

    async def _current(self) -> Mapping[str, Dialect]:
        before = self._chosen
        if before is not None and not self._is_old():
            return before
        try:
            return await self._read(before or {})
        except SlurmRefused:
            raise
        except Unavailable:
            if before is None:
                raise
            self._read_at = self._clock.monotonic()
            return before

    def _is_old(self) -> bool:
        return (
            self._clock.monotonic() - self._read_at >= _READ_AGAIN_S
            or self._rest.losses != self._losses
        )

    async def _read(self, before: Mapping[str, Dialect]) -> Mapping[str, Dialect]:
        losses = self._rest.losses
        chosen = choose(await self._offered(), self._known)
        for side, dialect in chosen.items():
            if side not in before or before[side].version != dialect.version:
                _report(side, dialect)
        self._chosen = chosen
        self._read_at, self._losses = self._clock.monotonic(), losses
        return chosen

    async def _offered(self) -> list[VersionOffer]:
        reply = await self._rest.get("/openapi/v3", timeout_s=_TIMEOUT_S)
        if reply.status in (401, 403):
            raise SlurmRefused(
                "slurmrestd refused the server's token",
                hint="Renew it (scontrol token) and check the configured user.",
            )
        return offered(reply.body)


class _Parameter(msgspec.Struct):
    name: str = ""


class _Operation(msgspec.Struct):
    parameters: list[_Parameter] = []
    responses: dict[str, Any] = {}


class _Path(msgspec.Struct):
    get: _Operation | None = None


class _Components(msgspec.Struct, frozen=True):
    schemas: dict[str, Any] = {}


class _OpenApi(msgspec.Struct):
    paths: dict[str, Any] = {}
    components: _Components = _Components()


def offered(body: bytes) -> list[VersionOffer]:
    """The paths of an OpenAPI document. Raises `SlurmRefused` if it is none."""
    try:
        document = msgspec.convert(loosely(body), _OpenApi)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise SlurmRefused(
            "slurmrestd's list of paths can't be read",
            hint=f"It began with {body[:60]!r}. Is this address really slurmrestd?",
        ) from None
    return [_offer(path, value, document.components) for path, value in document.paths.items()]


def _offer(path: str, value: Any, components: _Components) -> VersionOffer:
    try:
        operation = msgspec.convert(value, _Path).get or _Operation()
    except msgspec.MsgspecError:
        return VersionOffer(path)
    parameters = frozenset(parameter.name for parameter in operation.parameters)
    match = _PATH.fullmatch(path)
    fields = _fields(operation, match[3], components) if match else frozenset()
    return VersionOffer(path, parameters, fields)


def _fields(operation: _Operation, name: str, components: _Components) -> frozenset[str]:
    """The fields of the records in the list of that name."""
    for status in ("200", "default"):
        try:
            answer = operation.responses[status]["content"]["application/json"]["schema"]
            records = _resolved(_resolved(answer, components)["properties"][name], components)
            return frozenset(_resolved(records["items"], components)["properties"])
        except (KeyError, TypeError):
            continue
    return frozenset()


def _resolved(schema: Any, components: _Components) -> Any:
    """What a reference means, or the schema itself."""
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    return components.schemas[reference.rpartition("/")[2]] if reference else schema


def choose(offers: Iterable[VersionOffer], known: Mapping[str, Schema]) -> dict[str, Dialect]:
    """The highest known version of each side, with its lists; else the lowest newer one.

    Raises `SlurmRefused` if a newer one lacks a field.
    """
    found: dict[str, dict[str, dict[str, VersionOffer]]] = {"slurm": {}, "slurmdb": {}}
    for offer in offers:
        if match := _PATH.fullmatch(offer.path):
            found[match[1]].setdefault(match[2], {}).setdefault(match[3], offer)
    chosen: dict[str, Dialect] = {}
    newest = max(known, key=_order)
    for side, versions in found.items():
        usable = sorted((each for each in versions if "jobs" in versions[each]), key=_order)
        version = next((each for each in reversed(usable) if each in known), "")
        if version:
            chosen[side] = Dialect(known[version], versions[version], version)
            continue
        version = next((each for each in usable if _order(each) > _order(newest)), "")
        if version:
            _refuse_without_fields(side, version, versions[version])
            chosen[side] = Dialect(known[newest], versions[version], version)
    return chosen


def _refuse_without_fields(side: str, version: str, lists: Mapping[str, VersionOffer]) -> None:
    for name, offer in lists.items():
        missing = sorted(set(_NEEDED.get((side, name), ())) - offer.fields) if offer.fields else []
        if missing:
            raise SlurmRefused(
                f"slurmrestd offers only versions of /{side} that are newer than Lattice, and "
                f"{name} of {version} have no {', '.join(missing)}",
                hint="Upgrade Lattice, or load an older openapi plugin in slurmrestd.",
            )


def _report(side: str, dialect: Dialect) -> None:
    _log.info("slurmrestd: /%s is read in %s", side, dialect.version)
    if dialect.version != dialect.schema.version:
        _log.warning(
            "slurmrestd offers only versions that are newer than Lattice: "
            f"{dialect.version} is read like {dialect.schema.version}"
        )


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version[1:].split("."))
