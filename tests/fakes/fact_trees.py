"""Captured files of a node with fast networks, in a folder."""

from __future__ import annotations

from pathlib import Path

CAPTURED = Path(__file__).parents[1] / "fixtures/facts"


class FactTree:
    """A test changes what it likes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc, self.sys = root / "proc", root / "sys"
        for part in ("\n" + (CAPTURED / "fabric.txt").read_text()).split("\n== ")[1:]:
            path, _, text = part.partition("\n")
            self.write(path, f"{text.rstrip()}\n")

    def write(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def files(self) -> list[Path]:
        return sorted(each for each in self.root.rglob("*") if each.is_file())


def captured(name: str) -> str:
    return (CAPTURED / name).read_text()
