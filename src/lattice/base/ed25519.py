"""Verifies Ed25519 signatures with the libcrypto that Python has loaded for `hashlib`.

The package `cryptography` brings an OpenSSL of its own: 7 to 9 MiB for as long as a process lives.
Agents and helpers only verify, and Python's own libcrypto can do that. Where it can't be called, as
in some static builds, `cryptography` verifies.

A library is used only if it accepts a known signature and refuses a false one. No failure of a call
ever accepts a signature.
"""

from __future__ import annotations

import ctypes
import importlib
import weakref
from functools import cache
from typing import Any, Protocol

PUBLIC_KEY_BYTES = 32
_SIGNATURE_BYTES = 64
_EVP_PKEY_ED25519 = 1087
"""From `openssl/evp.h`."""
_LIBRARY_USERS = ("_hashlib", "_ssl")
"""Modules of Python that are linked to libcrypto; nearly every process has loaded the first."""
_SMALL_ORDER = frozenset(
    bytes.fromhex(each)
    for each in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""All encodings of points of small order, without the sign. Such a key fits any message."""
_KNOWN_KEY = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
_KNOWN_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)
"""The second test of RFC 8032; its message is `r`."""


class PublicKey(Protocol):
    """The public half of a key."""

    def verify(self, signature: bytes, message: bytes) -> bool:
        """True only if the key signed this message."""


def public_key(raw: bytes) -> PublicKey:
    """The key with these 32 bytes. Raises `ValueError` if nobody should trust such a key."""
    if len(raw) != PUBLIC_KEY_BYTES:
        raise ValueError(f"an Ed25519 key has {PUBLIC_KEY_BYTES} bytes, not {len(raw)}")
    if raw[:-1] + bytes((raw[-1] & 0x7F,)) in _SMALL_ORDER:
        raise ValueError("the key fits any message")
    library = loaded_libcrypto()
    return CryptographyKey(raw) if library is None else LibcryptoKey(library, raw)


class CryptographyKey:
    """A key for the package `cryptography`, which is imported here only."""

    def __init__(self, raw: bytes) -> None:
        """Raises `ValueError` for a wrong length."""
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - see above
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
            Ed25519PublicKey,
        )

        self._invalid = InvalidSignature
        self._key = Ed25519PublicKey.from_public_bytes(raw)

    def verify(self, signature: bytes, message: bytes) -> bool:
        try:
            self._key.verify(signature, message)
        except self._invalid:
            return False
        return True


class Libcrypto:
    """The functions of libcrypto that verify, with the types of their arguments."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises `AttributeError` if the library lacks one."""
        pointer, size, data = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        number = ctypes.c_int
        new_key = (number, pointer, data, size)
        self.new_key = _function(library.EVP_PKEY_new_raw_public_key, pointer, *new_key)
        self.free_key = _function(library.EVP_PKEY_free, None, pointer)
        self.new_context = _function(library.EVP_MD_CTX_new, pointer)
        self.free_context = _function(library.EVP_MD_CTX_free, None, pointer)
        self.begin = _function(library.EVP_DigestVerifyInit, number, *(pointer,) * 5)
        verify = (pointer, data, size, data, size)
        self.verify = _function(library.EVP_DigestVerify, number, *verify)
        self.clear_errors = _function(library.ERR_clear_error, None)

    def works(self) -> bool:
        """True if it knows a true signature from a false one."""
        try:
            key = LibcryptoKey(self, _KNOWN_KEY)
        except ValueError:
            return False
        return key.verify(_KNOWN_SIGNATURE, b"r") and not key.verify(_KNOWN_SIGNATURE, b"s")


def _function(found: Any, result: Any, *arguments: Any) -> Any:
    found.restype, found.argtypes = result, arguments
    return found


class LibcryptoKey:
    """A key for libcrypto."""

    def __init__(self, library: Libcrypto, raw: bytes) -> None:
        """Raises `ValueError` for a wrong length, or if the library refuses it."""
        if len(raw) != PUBLIC_KEY_BYTES:
            raise ValueError(f"an Ed25519 key has {PUBLIC_KEY_BYTES} bytes, not {len(raw)}")
        self._library = library
        self._key = library.new_key(_EVP_PKEY_ED25519, None, raw, PUBLIC_KEY_BYTES)
        if not self._key:
            library.clear_errors()
            raise ValueError("libcrypto refuses the key")
        weakref.finalize(self, library.free_key, self._key).atexit = False

    def verify(self, signature: bytes, message: bytes) -> bool:
        if len(signature) != _SIGNATURE_BYTES:
            return False
        library = self._library
        context = library.new_context()
        if not context:
            return False
        try:
            if library.begin(context, None, None, None, self._key) != 1:
                return False
            result: int = library.verify(
                context, signature, _SIGNATURE_BYTES, message, len(message)
            )
            return result == 1
        finally:
            library.free_context(context)
            # An error that is left here would be taken for one of TLS in this thread.
            library.clear_errors()


@cache
def loaded_libcrypto() -> Libcrypto | None:
    """The libcrypto of this process; None if it can't be called."""
    for name in _LIBRARY_USERS:
        try:
            # Without a file the module is a part of Python itself, and so is the library.
            file = getattr(importlib.import_module(name), "__file__", None)
            found = Libcrypto(ctypes.CDLL(file))
        except (ImportError, OSError, AttributeError):
            continue
        if found.works():
            return found
    return None
