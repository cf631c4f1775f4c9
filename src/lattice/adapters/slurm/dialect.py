"""Chooses the schema version: the highest that slurmrestd offers and Lattice supports.

slurmrestd's own list of paths decides. The choice is separate for slurmctld and slurmdbd, because a
site may load only one plugin. The list is read again when a path is suddenly gone: that is an
upgrade.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice.adapters.slurm.answer import SlurmRefused, loosely
from lattice.adapters.slurm.rest import SlurmRest
from lattice.adapters.slurm.schema.decoder import Schema

_PATH = re.compile(r"/(slurm|slurmdb)/(v\d+\.\d+\.\d+)/([a-z]+)(/?)")
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class VersionOffer:
    """A path and the names of its query parameters."""

    path: str
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Dialect:
    """One side of slurmrestd in the chosen version."""

    schema: Schema
    lists: Mapping[str, VersionOffer]

    def path(self, name: str) -> str:
        """The full path of a list such as `jobs`, as the server writes it."""
        return self.lists[name].path

    def offers(self, name: str, parameter: str) -> bool:
        """True if the list takes this query parameter: an unknown one is an error."""
        return parameter in self.lists[name].parameters


class Dialects:
    """Finds and caches the dialect of each side."""

    def __init__(self, rest: SlurmRest, known: Iterable[Schema]) -> None:
        self._rest = rest
        self._known = {schema.version: schema for schema in known}
        self._lock = asyncio.Lock()
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
            if self._chosen is None:
                self._chosen = choose(await self._offered(), self._known)
            dialect = self._chosen.get(side)
            if dialect is None or not all(name in dialect.lists for name in needed):
                self._chosen = None
                raise SlurmRefused(
                    f"slurmrestd offers no version of /{side} that Lattice knows",
                    hint=f"Lattice knows {', '.join(sorted(self._known))}; "
                    "load the matching openapi plugins in slurmrestd.",
                )
            return dialect

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


class _Path(msgspec.Struct):
    get: _Operation | None = None


class _OpenApi(msgspec.Struct):
    paths: dict[str, Any] = {}


def offered(body: bytes) -> list[VersionOffer]:
    """The paths of an OpenAPI document. Raises `SlurmRefused` if it is none."""
    try:
        document = msgspec.convert(loosely(body), _OpenApi)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise SlurmRefused(
            "slurmrestd's list of paths can't be read",
            hint=f"It began with {body[:60]!r}. Is this address really slurmrestd?",
        ) from None
    return [VersionOffer(path, _parameters(value)) for path, value in document.paths.items()]


def _parameters(value: Any) -> frozenset[str]:
    try:
        operation = msgspec.convert(value, _Path).get or _Operation()
    except msgspec.MsgspecError:
        return frozenset()
    return frozenset(parameter.name for parameter in operation.parameters)


def choose(offers: Iterable[VersionOffer], known: Mapping[str, Schema]) -> dict[str, Dialect]:
    """The highest known version of each side, with its lists."""
    found: dict[tuple[str, str], dict[str, VersionOffer]] = {}
    for offer in offers:
        match = _PATH.fullmatch(offer.path)
        if match and match[2] in known:
            found.setdefault((match[1], match[2]), {}).setdefault(match[3], offer)
    chosen: dict[str, Dialect] = {}
    for side, version in sorted(found, key=lambda each: _order(each[1])):
        if "jobs" in found[side, version]:
            chosen[side] = Dialect(known[version], found[side, version])
    return chosen


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version[1:].split("."))
