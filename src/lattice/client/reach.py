"""Connections that failed, as the blocking client and the terminal's dialler judge them."""

from __future__ import annotations

import ssl

from lattice.base.connector import Unreached, reason
from lattice.client.answers import unreachable


class BrokenOff(OSError):
    """An answer that was being read broke off."""

    def __init__(self, url: str, failure: OSError) -> None:
        super().__init__(reason(failure))
        self.url = url


def reasons(failure: Unreached) -> dict[str, str]:
    """Why each of them could not be reached."""
    return {url: reason(error) for url, error in failure.failures.items()}


def check_certificate(failure: Unreached) -> None:
    """Raise at once for a certificate that is refused: that is no replica that died."""
    for url, error in failure.failures.items():
        if isinstance(error, ssl.SSLCertVerificationError):
            why = f"its certificate is refused: {error.verify_message}"
            raise unreachable(url, why) from None
