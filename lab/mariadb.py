"""MariaDB below slurmdbd, and the copy of a loaded data folder that makes a new lab quick.

Initialising the folder, creating Slurm's tables and loading the accounts takes eight seconds and
always has the same outcome. The first lab of a machine pays that once and keeps a copy, outside
every lab's own folder; the copy's name says what it was made from.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from lab.addresses import MARIADB_PORT
from lab.command import run
from lab.layout import Layout
from lab.network import Network
from lab.process import Process
from lab.room import Room

PASSWORD = "lab"

_TEMPLATES = Path("/var/cache/lattice-lab")
# The same sizes at initialisation and at run time: a log file of another size is rebuilt.
_SIZES = ("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M")
_WELCOME = """\
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@'127.0.0.1' IDENTIFIED BY 'lab';
GRANT ALL ON slurm_acct_db.* TO slurm@'127.0.0.1';
"""


class Database:
    """The server's handle (`process`) and its data folder."""

    def __init__(self, folder: Path, layout: Layout, room: Room, network: Network) -> None:
        self._folder = folder
        self._room = room
        self._label = folder.with_suffix(".made-from")
        self._welcome = layout.etc / "mariadb.sql"
        self.process = Process(
            "mariadbd",
            [
                *("/usr/sbin/mariadbd", "--no-defaults", "--user=mysql", f"--datadir={folder}"),
                *(f"--socket={folder}/sock", f"--pid-file={folder}/pid", *_SIZES),
                *(f"--init-file={self._welcome}", "--skip-log-bin", "--performance-schema=OFF"),
                *("--bind-address=127.0.0.1", f"--port={MARIADB_PORT}"),
                # slurmdbd asks for a long lock wait; a lab may lose its last second in a crash.
                *("--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=0"),
            ],
            layout,
            room,
            prepare=self._write_welcome,
            probe=lambda: network.accepts(MARIADB_PORT),
        )

    def fill(self, made_from: str, load: Callable[[], None]) -> None:
        """Make the data folder ready, stopped, holding what `load` puts in.

        `load` is called with the server up, and only if neither the folder nor the machine's
        copy was made from the same thing before.
        """
        if self._label.exists() and self._label.read_text() == made_from:
            return
        template = _TEMPLATES / f"mariadb-{made_from}"
        if not self._label.exists() and template.is_dir():
            self._copy(template, self._folder)
        else:
            if not (self._folder / "mysql").is_dir():
                self._initialise()
            self.process.up()
            load()
            self.process.stop()
            if not self._label.exists():
                self._keep(template)
        self._label.write_text(made_from)

    def _write_welcome(self) -> None:
        self._welcome.write_text(_WELCOME)

    def _initialise(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        command = ["mariadb-install-db", "--no-defaults", "--user=mysql", *_SIZES]
        folder = f"--datadir={self._folder}"
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        self._room.run([*command, folder, *options])

    def _keep(self, template: Path) -> None:
        _TEMPLATES.mkdir(mode=0o755, exist_ok=True)
        partial = _TEMPLATES / f"partial-{os.getpid()}"
        self._copy(self._folder, partial)
        try:
            partial.rename(template)
        except OSError:  # another lab was quicker
            shutil.rmtree(partial)

    def _copy(self, source: Path, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        run(["cp", "-a", "--reflink=auto", str(source), str(target)])
