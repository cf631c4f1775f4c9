"""Parts of a soak inside the lab's control room: told a line, they answer with a line of JSON."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lab.room import Room

CHECKOUT = Path(__file__).parents[2]
_NICE = ("nice", "-n", "19")


class RoomPart:
    """A module that runs in the room. It ends when its standard input does."""

    def __init__(
        self, room: Room, *words: str, env: Mapping[str, str] | None = None, nice: bool = False
    ) -> None:
        self.name = " ".join(words[:2])
        paths = f"{CHECKOUT / 'src'}:{CHECKOUT}"
        self.process = room.popen(
            [*(_NICE if nice else ()), sys.executable, "-m", *words],
            cwd=str(CHECKOUT),
            env={**(env or {}), "PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stderr=None,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._hear, name=self.name, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")
        self.process.stdin.flush()

    def answer(self, within_s: float) -> Any:
        """The next line that it says."""
        try:
            line = self._answers.get(timeout=within_s)
        except queue.Empty:
            raise SystemExit(f"{self.name}: no answer in {within_s:g} s") from None
        if not line:
            raise SystemExit(f"{self.name}: it ended with {self.process.wait(10)}")
        return json.loads(line)

    def end(self) -> None:
        """Harmless if it is over."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def orders() -> Iterator[str]:
    """In the part: line by line what it is told. The process ends when there is nobody to tell."""
    # Ctrl-C at the terminal is for whoever started it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lines: queue.Queue[str] = queue.Queue()

    def hear() -> None:
        for line in sys.stdin:
            lines.put(line.strip())
        os._exit(0)

    threading.Thread(target=hear, daemon=True).start()
    while True:
        yield lines.get()


def say(told: Mapping[str, Any]) -> None:
    """In the part: one line."""
    print(json.dumps(told), flush=True)
