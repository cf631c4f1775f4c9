"""Failed connections, for the blocking client and the terminal's dialler."""

from __future__ import annotations

import ssl

from lattice.base.fast_start.connector import Unreached, reason
from lattice.client.answers import unreachable


class BrokenOff(OSError):
    """A response broke off while it was read."""

    def __init__(self, url: str, failure: OSError) -> None:
        super().__init__(reason(failure))
        self.url = url


def reasons(failure: Unreached) -> dict[str, str]:
    """Why each of them could not be reached."""
    return {url: reason(error) for url, error in failure.failures.items()}


def check_certificate(failure: Unreached) -> None:
    """Raise at once for a refused certificate, because such a replica has not died."""
    for url, error in failure.failures.items():
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is refused: {error.verify_message}"
            raise unreachable(url, why) from None
