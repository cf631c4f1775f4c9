"""AES-256-GCM with the libcrypto that Python has loaded for `hashlib`.

As for signatures (`ed25519`): the package `cryptography` would keep an OpenSSL of its own in each
agent. It is used only where Python's own library can't be called, as in some static builds.

A library is used only if it makes a known cipher text and refuses a false tag. Text is returned
only after its tag was verified.
"""

from __future__ import annotations

import ctypes
import hmac
import importlib
from functools import cache
from typing import Any, Protocol

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
_MOST_BYTES = 1 << 30
"""Of one message: lengths of libcrypto are C integers."""
_SET_TAG, _GET_TAG = 0x11, 0x10
"""From `openssl/evp.h`."""
_LIBRARY_USERS = ("_hashlib", "_ssl")
"""Modules of Python that are linked to libcrypto; nearly every process has loaded the first."""
_KNOWN = bytes.fromhex("cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919")
"""Test case 14 of the GCM specification: key, nonce and text are zeros."""


class BadTag(ValueError):
    """The cipher text, its associated data, the nonce or the key is another one."""


class Aead(Protocol):
    """Authenticated encryption under one key."""

    def seal(self, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        """The cipher text and its tag. A nonce must never be used twice under one key."""

    def open(self, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        """The plain text. Raises `BadTag`."""


def aes_gcm(key: bytes) -> Aead:
    """The cipher with these 32 bytes as its key."""
    library = _loaded()
    return CryptographyGcm(key) if library is None else LibcryptoGcm(library, key)


def derived_key(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    """32 bytes by HKDF with SHA-256 (RFC 5869)."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, purpose + b"\x01", "sha256")


class CryptographyGcm:
    """The cipher of the package `cryptography`, which is imported here only."""

    def __init__(self, key: bytes) -> None:
        """Raises `ValueError` for a wrong length."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - see above
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        _check_key(key)
        self._invalid = InvalidTag
        self._cipher = AESGCM(key)

    def seal(self, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        _check_sizes(nonce, plain, associated)
        return self._cipher.encrypt(nonce, plain, associated)

    def open(self, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        _check_sizes(nonce, sealed, associated)
        try:
            return self._cipher.decrypt(nonce, sealed, associated)
        except self._invalid:
            raise BadTag("the tag does not fit") from None


class LibcryptoCiphers:
    """The functions of libcrypto that cipher, with the types of their arguments."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises `AttributeError` if the library lacks one."""
        pointer, data, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        length = ctypes.POINTER(number)
        self.new_context = _function(library.EVP_CIPHER_CTX_new, pointer)
        self.free_context = _function(library.EVP_CIPHER_CTX_free, None, pointer)
        self.cipher = _function(library.EVP_aes_256_gcm, pointer)()
        begin = (pointer, pointer, pointer, data, data)
        update = (pointer, pointer, length, data, number)
        end = (pointer, pointer, length)
        self.begin_seal = _function(library.EVP_EncryptInit_ex, number, *begin)
        self.update_seal = _function(library.EVP_EncryptUpdate, number, *update)
        self.end_seal = _function(library.EVP_EncryptFinal_ex, number, *end)
        self.begin_open = _function(library.EVP_DecryptInit_ex, number, *begin)
        self.update_open = _function(library.EVP_DecryptUpdate, number, *update)
        self.end_open = _function(library.EVP_DecryptFinal_ex, number, *end)
        control = (pointer, number, number, pointer)
        self.control = _function(library.EVP_CIPHER_CTX_ctrl, number, *control)
        self.clear_errors = _function(library.ERR_clear_error, None)

    def works(self) -> bool:
        """True if it makes a known cipher text and refuses a changed one."""
        if not self.cipher:
            return False
        cipher = LibcryptoGcm(self, bytes(KEY_BYTES))
        zeros = bytes(NONCE_BYTES)
        try:
            if cipher.seal(zeros, bytes(16), b"") != _KNOWN:
                return False
            if cipher.open(zeros, _KNOWN, b"") != bytes(16):
                return False
            cipher.open(zeros, _KNOWN[:-1] + b"\x18", b"")
        except BadTag:
            return True
        except RuntimeError:
            return False
        return False


def _function(found: Any, result: Any, *arguments: Any) -> Any:
    found.restype, found.argtypes = result, arguments
    return found


class LibcryptoGcm:
    """The cipher of libcrypto. Safe in any thread: each message has its own context."""

    def __init__(self, library: LibcryptoCiphers, key: bytes) -> None:
        """Raises `ValueError` for a wrong length."""
        _check_key(key)
        self._library = library
        self._key = key

    def seal(self, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        _check_sizes(nonce, plain, associated)
        library, size, end = self._library, len(plain), ctypes.c_int(0)
        sealed = ctypes.create_string_buffer(size + TAG_BYTES)
        at = ctypes.addressof(sealed)
        context = library.new_context()
        try:
            done = context and library.begin_seal(context, library.cipher, None, self._key, nonce)
            for text, target in ((associated, None), (plain, at)):
                if done == 1 and text:
                    done = library.update_seal(context, target, ctypes.byref(end), text, len(text))
            if done == 1:
                done = library.end_seal(context, at + size, ctypes.byref(end))
            if done == 1:
                done = library.control(context, _GET_TAG, TAG_BYTES, at + size)
        finally:
            self._leave(context)
        if done != 1:
            raise RuntimeError("libcrypto does not encrypt")
        return sealed.raw

    def open(self, nonce: bytes, sealed: bytes, associated: bytes) -> bytes:
        _check_sizes(nonce, sealed, associated)
        size = len(sealed) - TAG_BYTES
        if size < 0:
            raise BadTag("the cipher text is shorter than its tag")
        library, end = self._library, ctypes.c_int(0)
        plain = ctypes.create_string_buffer(max(size, 1))
        at = ctypes.addressof(plain)
        tag = ctypes.create_string_buffer(sealed[size:], TAG_BYTES)
        context = library.new_context()
        try:
            done = context and library.begin_open(context, library.cipher, None, self._key, nonce)
            if done == 1:
                done = library.control(context, _SET_TAG, TAG_BYTES, ctypes.addressof(tag))
            for text, target, count in ((associated, None, len(associated)), (sealed, at, size)):
                if done == 1 and count:
                    done = library.update_open(context, target, ctypes.byref(end), text, count)
            # The tag is compared here: nothing of the text counts before.
            opened = done == 1 and library.end_open(context, at + size, ctypes.byref(end)) == 1
        finally:
            self._leave(context)
        if not opened:
            ctypes.memset(at, 0, size)
            raise BadTag("the tag does not fit")
        return plain.raw[:size]

    def _leave(self, context: Any) -> None:
        self._library.free_context(context)
        # An error that is left here would be taken for one of TLS in this thread.
        self._library.clear_errors()


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of AES-256 has {KEY_BYTES} bytes, not {len(key)}")


def _check_sizes(nonce: bytes, text: bytes, associated: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise ValueError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
    if max(len(text), len(associated)) > _MOST_BYTES:
        raise ValueError(f"a message has at most {_MOST_BYTES} bytes")


@cache
def _loaded() -> LibcryptoCiphers | None:
    """The libcrypto of this process; None if it can't be called."""
    for name in _LIBRARY_USERS:
        try:
            # Without a file the module is a part of Python itself, and so is the library.
            file = getattr(importlib.import_module(name), "__file__", None)
            found = LibcryptoCiphers(ctypes.CDLL(file))
        except (ImportError, OSError, AttributeError):
            continue
        if found.works():
            return found
    return None
