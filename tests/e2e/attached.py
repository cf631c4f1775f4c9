"""A terminal in a job of the lab, held by `attach_client`, for tests that look at what it tells."""

from __future__ import annotations

import json
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lab.laboratory import Lab
from tests.e2e.people import Person
from tests.eventually import PATIENCE_S

_CHECKOUT = Path(__file__).parents[2]


class Attached:
    """A running client; `events` is everything it has told."""

    def __init__(
        self, lab: Lab, person: Person, job: int | str, *, first: int = 0, **start: Any
    ) -> None:
        servers = [each.url for each in lab.servers]
        servers = servers[first:] + servers[:first]
        self.session = start.setdefault("session", secrets.token_hex(16))
        start.setdefault("terminal", "xterm")
        self.process = lab.control.room.popen(
            [
                *(sys.executable, "-m", "tests.e2e.attach_client", str(job)),
                *(",".join(servers), str(lab.layout.certificates / "ca.crt")),
                json.dumps(start),
            ],
            cwd=str(_CHECKOUT),
            env={**person.bearer, "PYTHONPATH": str(_CHECKOUT)},
            stdin=subprocess.PIPE,
        )
        self.events: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def until(
        self, wanted: Callable[[dict[str, Any]], bool], timeout_s: float = PATIENCE_S
    ) -> dict[str, Any]:
        """The next event that is as wanted."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(("not in time", self.events[-10:])) from None
            if not line:
                raise AssertionError(("it ended", self.events[-10:], self._errors()))
            event: dict[str, Any] = json.loads(line)
            self.events.append(event)
            if wanted(event):
                return event

    def word(self, kind: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The next word of that type."""
        event = self.until(lambda each: each.get("word", {}).get("type") == kind, timeout_s)
        found: dict[str, Any] = event["word"]
        return found

    def notice(self, kind: str, timeout_s: float = PATIENCE_S) -> str:
        event = self.until(lambda each: each.get("word", {}).get("kind") == kind, timeout_s)
        return str(event["word"]["words"])

    def message(self, kind: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        return self.until(lambda each: each.get("message") == kind, timeout_s)

    def shows(self, text: str, timeout_s: float = PATIENCE_S) -> str:
        """Everything shown until that text is among it."""
        shown = ""

        def look(event: dict[str, Any]) -> bool:
            nonlocal shown
            if event.get("message") in {"Output", "Errors"}:
                shown += event["text"]
            return text in shown

        self.until(look, timeout_s)
        return shown

    def type(self, text: str) -> None:
        self._order(text)

    def cut(self) -> None:
        self._order({"cut": True})

    def leave(self) -> None:
        self._order({"leave": True})

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Leave in order, so that its place is free for the next."""
        with suppress(OSError, subprocess.TimeoutExpired, ValueError):
            self.leave()
            self.process.wait(timeout=5)
        self.kill()
        self._reading.join(timeout=5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def ended(self, timeout_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Everything it told until it ended."""
        try:
            self.until(lambda _: False, timeout_s)
        except AssertionError as over:
            if over.args[0][0] != "it ended":
                raise
        self.process.wait(timeout=60)
        return self.events

    def _order(self, order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def _errors(self) -> str:
        return self.process.stderr.read()[-2000:] if self.process.stderr else ""


@contextmanager
def attached(
    lab: Lab, person: Person, job: int | str, *, first: int = 0, **start: Any
) -> Iterator[Attached]:
    client = Attached(lab, person, job, first=first, **start)
    try:
        yield client
    finally:
        client.close()
