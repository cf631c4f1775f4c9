"""The signature of an image: a file beside it, `IMAGE.sig`. Pure.

It has one line, an Ed25519 signature in base64. Signed is a text that names the SHA-256 of the
whole image, so that any tool can sign and the image is read once.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable

from lattice.base.ed25519 import public_key

SUFFIX = ".sig"
LARGEST_BYTES = 4096
_SIGNATURE_BYTES = 64
_PREFIX = "lattice image 1\n"


class BadImageSignature(ValueError):
    """An image is not signed by a key of the site. The text may be shown to the job's owner."""


def signed_text(digest: bytes) -> bytes:
    """The text that is signed for the image with this SHA-256."""
    return f"{_PREFIX}{digest.hex()}\n".encode("ascii")


def check_signature(raw: bytes, digest: bytes, keys: Iterable[bytes]) -> None:
    """Check the content of a signature's file. Raises `BadImageSignature`."""
    try:
        signature = base64.b64decode(raw.strip(), validate=True)
    except binascii.Error:
        signature = b""
    if len(signature) != _SIGNATURE_BYTES:
        raise BadImageSignature("its signature can't be parsed")
    text = signed_text(digest)
    if not any(public_key(each).verify(signature, text) for each in keys):
        raise BadImageSignature("its signature is of none of this site's keys")
