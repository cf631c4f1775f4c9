"""SoftHSM as the token with the site's keys, in place of a file, as the servers' account has it.

The module is a copy, so that a story can break it and takes nothing from the machine.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from lab.command import LabError
from lab.files import give, owned_folder
from lab.layout import Layout
from lab.other_python import LAB_PYTHON
from lab.room import Room
from lab.users import SERVER_USER
from lattice.adapters.sitekeys.pkcs11 import Pkcs11SiteKeys, Token

_MODULES = (
    "/usr/lib/softhsm/libsofthsm2.so",
    "/usr/lib64/pkcs11/libsofthsm2.so",
    "/usr/lib64/softhsm/libsofthsm2.so",
)
_PIN = "25800"
LABEL = "site"
FIRST_KEY = "token-1"


class SoftHsm:
    """One token with a key, `FIRST_KEY`."""

    def __init__(self, layout: Layout, room: Room) -> None:
        self.folder = layout.state / "softhsm"
        self.module = self.folder / "libsofthsm2.so"
        self.pin_file = self.folder / "pin"
        self.configuration = self.folder / "softhsm2.conf"
        self._tokens = self.folder / "tokens"
        self._away = self.folder / "tokens-away"
        self._room = room

    @property
    def environment(self) -> dict[str, str]:
        """What the module needs to find the token."""
        return {"SOFTHSM2_CONF": str(self.configuration)}

    @property
    def section(self) -> dict[str, str]:
        """The keys of the section `sensitive` that name it."""
        return {
            "pkcs11_module": str(self.module),
            "pkcs11_token": LABEL,
            "pkcs11_pin_file": str(self.pin_file),
            "pkcs11_key": FIRST_KEY,
        }

    async def make(self) -> None:
        """The token and its key, anew."""
        shutil.rmtree(self.folder, ignore_errors=True)
        owned_folder(self.folder, SERVER_USER)
        owned_folder(self._tokens, SERVER_USER)
        self._tokens.chmod(0o700)
        self.mend_module()
        lines = f"directories.tokendir = {self._tokens}\nobjectstore.backend = file\n"
        self._file(self.configuration, lines)
        self._file(self.pin_file, f"{_PIN}\n")
        words = ("softhsm2-util", "--init-token", "--free", "--label", LABEL)
        pins = ("--so-pin", _PIN, "--pin", _PIN)
        self._room.run([*words, *pins], user=SERVER_USER, env=self.environment)
        await self.make_key(FIRST_KEY)

    async def make_key(self, name: str) -> None:
        """An AES key that never leaves the token."""
        token = Token(self.module, LABEL, self.pin_file, name)
        settings = (f"{name}={value}" for name, value in self.environment.items())
        program = (str(LAB_PYTHON), "-m", "lattice.adapters.sitekeys.pkcs11_process")
        argv = ("env", *settings, *program)
        await Pkcs11SiteKeys(token, within_s=60, argv=argv).create(name)
        # The account of the servers can't reach this Python outside of their room.
        for each in self._tokens.rglob("*"):
            give(each, SERVER_USER)

    def take_away(self) -> None:
        """As if somebody pulled the token out."""
        self._tokens.rename(self._away)

    def put_back(self) -> None:
        if self._away.exists():
            self._away.rename(self._tokens)

    def break_module(self) -> None:
        """The library is there, and can't be loaded."""
        self.module.unlink()
        self._file(self.module, "no library\n")

    def mend_module(self) -> None:
        self.module.unlink(missing_ok=True)
        shutil.copy(_module(), self.module)

    def _file(self, path: Path, text: str) -> None:
        path.touch(mode=0o600)
        path.write_text(text)
        give(path, SERVER_USER)


def _module() -> str:
    for each in _MODULES:
        if Path(each).exists():
            return each
    raise LabError("softhsm2 is not installed: scripts/setup")
