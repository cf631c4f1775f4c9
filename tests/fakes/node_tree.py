"""A node's /proc, control groups and spool in a folder: recorded ones, or built by a test."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path

from lattice.adapters.linux.nodejobs import Roots

RECORDINGS = Path(__file__).parents[1] / "fixtures/cgroups"
BOOTED = 1_794_700_000
BOOT_ID = "11111111-2222-3333-4444-555555555555"


class NodeTree:
    """Folders are made and removed as the kernel would; inotify on them is the real one."""

    def __init__(self, root: Path, *, boot_id: str = BOOT_ID, btime: int = BOOTED) -> None:
        self.roots = Roots(root / "proc", root / "cgroup", root / "spool")
        self.proc, self.cgroup, self.spool = root / "proc", root / "cgroup", root / "spool"
        random = self.proc / "sys/kernel/random"
        random.mkdir(parents=True)
        (random / "boot_id").write_text(boot_id + "\n")
        (self.proc / "stat").write_text(f"cpu  1 2 3\nbtime {btime}\nprocesses 7\n")
        (self.proc / "1").mkdir()
        self.cgroup.mkdir()
        self.spool.mkdir()
        self._births: dict[tuple[str, int], float] = {}
        self._moments = count(BOOTED + 100)
        self._pids = count(100)

    @classmethod
    def recorded(cls, root: Path, name: str) -> NodeTree:
        lines = [line.split("\t") for line in (RECORDINGS / f"{name}.txt").read_text().splitlines()]
        told = {line[0]: line[1] for line in lines if len(line) == 2}
        tree = cls(root, boot_id=told["boot_id"], btime=int(told["btime"]))
        if name.startswith("v2"):
            (tree.cgroup / "cgroup.controllers").touch()
        for line in lines:
            match line:
                case ["spool", socket]:
                    (tree.spool / socket).touch()
                case ["group", path, pids]:
                    tree.group(path, *map(int, pids.split()))
                case ["process", pid, uid, title, stat]:
                    tree.process(int(pid), uid=int(uid), title=title, stat=stat)
        return tree

    def group(self, path: str, *pids: int) -> Path:
        folder = self.cgroup / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return folder

    def process(
        self,
        pid: int | None = None,
        *,
        uid: int = 3001,
        title: str = "sleep 1",
        ticks: int = 10_100,
        stat: str | None = None,
    ) -> int:
        pid = next(self._pids) if pid is None else pid
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        between = " ".join(["0"] * 18)
        (folder / "stat").write_text(stat or f"{pid} (a) b) S {between} {ticks} 0 0\n")
        (folder / "status").write_text(f"Name:\ta\nUid:\t{uid}\t0\t0\t0\n")
        (folder / "cmdline").write_text(title + "\0\0")
        return pid

    def freeze(self, pid: int, name: str = "stat") -> None:
        """From now on the file holds whoever opens it, as the kernel can."""
        file = self.proc / str(pid) / name
        file.rename(file.with_name(f"{name}.thawed"))
        os.mkfifo(file)

    def thaw(self, pid: int, name: str = "stat") -> None:
        """Whoever was held reads what there is, and so does everybody after."""
        file = self.proc / str(pid) / name
        thawed = file.with_name(f"{name}.thawed")
        with suppress(OSError):  # nobody waits
            writer = os.open(file, os.O_WRONLY | os.O_NONBLOCK)
            os.write(writer, thawed.read_bytes())
            os.close(writer)
        thawed.rename(file)

    def remove(self, path: str) -> None:
        folder = self.cgroup / path
        shutil.rmtree(folder)
        gone = [key for key in self._births if Path(key[0]).is_relative_to(folder)]
        for key in gone:  # this file system may give the number to the next folder
            del self._births[key]

    def birth(self, path: str, found: os.stat_result) -> float:
        """As the kernel's: one moment for each folder made, whatever happens in it later."""
        return self._births.setdefault((path, found.st_ino), float(next(self._moments)))
