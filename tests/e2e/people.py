"""People of the lab at their terminals: each runs the real `lattice` in the lab's login room."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.laboratory import Lab


@dataclass(frozen=True)
class Said:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)


class Person:
    """One account of the lab."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab = lab
        self.name = name

    def lattice(
        self, *words: str, env: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Said:
        done = self.lab.run_as(self.name, ["lattice", *words], env=env, timeout_s=timeout_s)
        return Said(done.returncode, done.stdout, done.stderr)

    def logged_in(self, *scopes: str) -> Person:
        """Signed in afresh, asking for these scopes."""
        token = self.lab.oidc.token(self.name, " ".join(("openid", "offline_access", *scopes)))
        self._token = str(token["access_token"])
        return self

    @property
    def bearer(self) -> dict[str, str]:
        return {"LATTICE_TOKEN": self._token}

    def asks(self, *words: str) -> Any:
        """The answer as data; the command must succeed."""
        return self.lattice(*words, "-o", "json", env=self.bearer).json

    def tries(self, *words: str) -> Said:
        """The answer as text, however it ends."""
        return self.lattice(*words, env=self.bearer)

    def sees(self, *words: str) -> set[str]:
        """The ids in a list."""
        return {each["id"] for each in self.asks(*words)["allocations"]}

    def card(self, job: int | str) -> dict[str, Any]:
        found: dict[str, Any] = self.asks("status", str(job))
        return found
