"""Logs a person of the lab in with the real `lattice login`, by the device flow.

The command prints an address for a second screen; the sign-in driver is that screen.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lab.addresses import OIDC_ISSUER
from lab.command import LabError
from lab.network import Network
from lab.session import Sessions
from lab.signin import sign_in

_ADDRESS = re.compile(re.escape(OIDC_ISSUER) + r"/device\?\S*user_code=[A-Za-z0-9-]+")
_TIMEOUT_S = 30.0


def can_log_in() -> bool:
    """Whether the command is installed beside this Python."""
    return (Path(sys.prefix) / "bin" / "lattice").exists()


def log_in(sessions: Sessions, network: Network, user: str) -> None:
    """Leave the person logged in, as `lattice login --flow device` and her browser would."""
    command = sessions.popen(
        user, ["lattice", "login", "--flow", "device"], stderr=subprocess.STDOUT
    )
    with command:
        said = ""
        for line in command.stdout or ():
            said += line
            if found := _ADDRESS.search(line):
                with network.entered():
                    sign_in(user, found[0])
        try:
            status = command.wait(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            command.kill()
            raise LabError(f"lattice login did not end: {said}") from None
    if status != 0:
        raise LabError(f"lattice login: exit status {status}: {said.strip()}")
