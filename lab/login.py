"""Logs a person of the lab in with the real `lattice login`; the sign-in driver is her browser.

By the code flow, which ends at once: the device flow makes everybody wait for its next poll.
"""

from __future__ import annotations

import re
import subprocess

from lab.addresses import OIDC_ISSUER
from lab.command import LabError
from lab.network import Network
from lab.other_python import LAB_PYTHON
from lab.session import Sessions
from lab.signin import sign_in

_COMMAND = ("lattice", "login", "--flow", "pkce", "--no-browser")
_ADDRESS = re.compile(re.escape(OIDC_ISSUER) + r"/auth\?\S+")
_TIMEOUT_S = 30.0


def can_log_in() -> bool:
    """Whether the command is installed beside this Python."""
    return (LAB_PYTHON.parent / "lattice").exists()


def log_in(sessions: Sessions, network: Network, user: str, *scopes: str) -> None:
    """Leave the person logged in, having asked for these scopes beside the usual ones."""
    asked = [word for scope in scopes for word in ("--scope", scope)]
    command = sessions.popen(user, [*_COMMAND, *asked], stderr=subprocess.STDOUT)
    said = ""
    with command:
        try:
            for line in command.stdout or ():
                said += line
                if found := _ADDRESS.search(line):
                    with network.entered():
                        sign_in(user, found[0])
            status = command.wait(timeout=_TIMEOUT_S)
        except BaseException:
            command.kill()
            raise
    if status != 0:
        raise LabError(f"lattice login: exit status {status}: {said.strip()}")
