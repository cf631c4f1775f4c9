"""Live ids and node names, with descriptions, for shell completion.

A person waits at the keyboard. So the server gets a fraction of a second, and any failure gives no
candidates. Answers are cached for five seconds, for the next press of the key.
"""

# Someone waits at the keyboard for what is imported here:
# ruff: noqa: PLC0415, PTH103, PTH104, PTH120, PTH123

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lattice.base.errors import LatticeError
from lattice.base.text import inert

if TYPE_CHECKING:
    from lattice.client.blocking_client import SyncClient

_KEEP_S = 5.0
_TIMEOUT_S = 0.3

Candidates = list[tuple[str, str]]


def candidates(
    kind: str, environment: Mapping[str, str], common: Mapping[str, object]
) -> Candidates:
    """Values and descriptions for one kind of word; empty if they can't be had."""
    if kind == "states":
        from lattice.domain.allocation import State

        return [(state.value, "") for state in State]
    try:
        return _live(kind, environment, common)
    except (LatticeError, OSError, ValueError):
        return []


def _live(kind: str, environment: Mapping[str, str], common: Mapping[str, object]) -> Candidates:
    from lattice.client.blocking_client import SyncClient
    from lattice.client.settings import Settings

    url, ca = common.get("api_url"), common.get("ca")
    settings = Settings.load(
        environment,
        api_url=url if isinstance(url, str) else None,
        ca=ca if isinstance(ca, str) else None,
        local=bool(common.get("local")),
    )
    if settings.local:
        # Slurm's commands take longer than a person at the keyboard waits.
        return []
    path = _cache_path(kind, settings.urls[0], environment)
    cached = _read_cache(path)
    if cached is not None:
        return cached
    with SyncClient(settings, environment=environment, timeout_s=_TIMEOUT_S) as client:
        found = _ask(kind, client)
    _write_cache(path, found)
    return found


def _ask(kind: str, client: SyncClient) -> Candidates:
    if kind == "nodes":
        return [(_word(node.name), node.state.value) for node in client.nodes().nodes]
    return [
        (_word(each.id), f"{inert(each.name)}, {each.state.value}")
        for each in client.allocations(limit=200).allocations
        if "[" not in each.id
    ]


def _word(text: str) -> str:
    # The word goes onto a command line, so it may have nothing that a shell interprets.
    return text if all(letter.isalnum() or letter in "_+-.@" for letter in text) else ""


def _cache_path(kind: str, server: str, environment: Mapping[str, str]) -> str:
    from urllib.parse import quote

    from lattice.client.settings import home

    base = environment.get("XDG_CACHE_HOME") or f"{home(environment)}/.cache"
    return f"{base}/lattice/complete-{kind}-{quote(server, safe='')}"


def _read_cache(path: str) -> Candidates | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with open(handle, encoding="utf-8") as file:
        facts = os.fstat(handle)
        fresh = 0 <= time.time() - facts.st_mtime < _KEEP_S
        if not fresh or facts.st_uid != os.geteuid() or not stat.S_ISREG(facts.st_mode):
            return None
        lines = [line.rstrip("\n").partition("\t") for line in file]
    return [(value, text) for value, _, text in lines]


def _write_cache(path: str, found: Candidates) -> None:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{value}\t{text}\n" for value, text in found if value)
    os.rename(temporary, path)
