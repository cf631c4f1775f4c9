"""A Slurm token of the caller, by `scontrol token`. Imports little."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

from lattice.base.errors import Unavailable

VARIABLE = "SLURM_JWT"
LIFESPAN_S = 1800
"""Slurm's own default, so a site's limit allows it."""
_TIMEOUT_S = 15.0
_NOT_HERE = "Signing in by a Slurm token needs scontrol on this machine, or SLURM_JWT."


def own_token(environment: Mapping[str, str]) -> str:
    """A new token of the caller, good for half an hour. Raises `Unavailable`."""
    # With a token in its environment, scontrol would use that one in place of the caller's uid.
    clean = {name: value for name, value in environment.items() if name != VARIABLE}
    argv = ["scontrol", "token", f"lifespan={LIFESPAN_S}"]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
            env=clean,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise Unavailable(_NOT_HERE, hint="Use a host of the cluster, or --flow device.") from None
    for line in done.stdout.splitlines():
        name, equals, token = line.strip().partition("=")
        if name == VARIABLE and equals and token and not done.returncode:
            return token
    reason = " ".join(done.stderr.split())[:200] or "nothing"
    raise Unavailable(
        "Slurm gave no token.",
        hint=f"scontrol says: {reason}. The site needs AuthAltTypes=auth/jwt.",
    )
