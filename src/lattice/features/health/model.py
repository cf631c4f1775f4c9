"""The answers of the feature. Pure. They are public, so they have no addresses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    """`ok`, `away` if it does not answer, or `none` if the server has none. `reason` says more."""

    state: str = "none"
    reason: str = ""


UNKNOWN_ENGINE = EngineHealth()


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The engines below the server, as last asked."""

    slurm: EngineHealth = UNKNOWN_ENGINE
    accounting: EngineHealth = UNKNOWN_ENGINE
    state: EngineHealth = UNKNOWN_ENGINE
    objects: EngineHealth = UNKNOWN_ENGINE
    metrics: EngineHealth = UNKNOWN_ENGINE


NO_ENGINES = Engines()


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`ok`, or `degraded` while Slurm or the state store does not answer.

    `state` is the state store's: `ok`, `away`, or `none` if the server has none. `note` is a
    message for people.
    """

    status: str
    version: str
    state: str = "none"
    note: str = ""
    engines: Engines = NO_ENGINES


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the server can serve; `engines` has the reasons if it can't."""

    ready: bool
    version: str
    engines: Engines = NO_ENGINES
