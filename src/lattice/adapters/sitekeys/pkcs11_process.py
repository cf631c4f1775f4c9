"""One question to a PKCS#11 token, in a process that ends with the answer.

The question comes on standard input and the answer goes to standard output, as MessagePack. The
keys are AES keys of 256 bits on the token, found by their label, and used with CKM_AES_GCM. A nonce
is 12 random bytes, which allows 2^32 data keys a site key.
"""

from __future__ import annotations

import ctypes
import secrets
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

_ULONG = ctypes.c_ulong
_NONCE_BYTES = 12
_TAG_BYTES = 16
_MOST_SLOTS = 64
_CKM_AES_KEY_GEN, _CKM_AES_GCM = 0x1080, 0x1087
_CKF_RW_SESSION, _CKF_SERIAL_SESSION = 2, 4
_CKU_USER = 1
_CKO_SECRET_KEY, _CKK_AES = 4, 0x1F
_CKA_CLASS, _CKA_TOKEN, _CKA_PRIVATE, _CKA_LABEL, _CKA_KEY_TYPE = 0, 1, 2, 3, 0x100
_CKA_SENSITIVE, _CKA_ENCRYPT, _CKA_DECRYPT = 0x103, 0x104, 0x105
_CKA_VALUE_LEN, _CKA_EXTRACTABLE = 0x161, 0x162
_KEY_BYTES = 32
_CHANGED = frozenset({0x40, 0x41, 0x05, 0x06})
"""CKR_ENCRYPTED_DATA_INVALID, _LEN_RANGE; CKR_GENERAL_ERROR and _FUNCTION_FAILED: a false tag."""
_FUNCTIONS = {
    "initialize": 0, "slots": 4, "token": 6, "session": 12, "login": 18, "find": 26, "found": 27,
    "find_end": 28, "encrypt_begin": 29, "encrypt": 30, "decrypt_begin": 33, "decrypt": 34,
    "generate": 58,
}  # fmt: skip
"""Their numbers in CK_FUNCTION_LIST."""
_MOST_FUNCTIONS = 68


class TokenFault(StrEnum):
    """Why there is no answer."""

    CHANGED = "changed"
    AWAY = "away"


class TokenQuestion(msgspec.Struct, frozen=True, array_like=True):
    """What to do, and where."""

    act: str
    """`wrap`, `unwrap`, or `create`: make a key that never leaves the token."""
    module: str
    token: str
    pin_file: str
    key: str
    data: bytes
    bound: bytes


class TokenAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The wrapped or unwrapped secret, or why there is none."""

    data: bytes = b""
    fault: TokenFault | None = None
    reason: str = ""


class _Refused(Exception):
    """The token refused a call; the text follows "The token with the site's keys"."""


class _Failed(_Refused):
    """A function of the module returned an error."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"refuses {name} with error 0x{code:x}")
        self.code = code


class _Functions(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_ubyte * 2),
        ("calls", ctypes.c_void_p * _MOST_FUNCTIONS),
    )


class _Mechanism(ctypes.Structure):
    _fields_ = (("kind", _ULONG), ("parameter", ctypes.c_void_p), ("size", _ULONG))


class _GcmParameters(ctypes.Structure):
    _fields_ = (
        ("nonce", ctypes.c_char_p),
        ("nonce_bytes", _ULONG),
        ("nonce_bits", _ULONG),
        ("associated", ctypes.c_char_p),
        ("associated_bytes", _ULONG),
        ("tag_bits", _ULONG),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (("kind", _ULONG), ("value", ctypes.c_void_p), ("size", _ULONG))


class _Module:
    """The functions of a token's library, each with its check."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        table = ctypes.POINTER(_Functions)()
        code = library.C_GetFunctionList(ctypes.byref(table))
        if code:
            raise _Failed("C_GetFunctionList", code)
        self._calls = table.contents.calls

    def call(self, name: str, *arguments: Any) -> None:
        """Raises `_Failed`."""
        prototype = ctypes.CFUNCTYPE(_ULONG, *map(_argument_type, arguments))
        code = prototype(self._calls[_FUNCTIONS[name]])(*arguments)
        if code:
            raise _Failed(name, code)


def _argument_type(argument: Any) -> Any:
    if isinstance(argument, int):
        return _ULONG
    return ctypes.c_char_p if isinstance(argument, bytes) else ctypes.c_void_p


def answer_of(question: TokenQuestion) -> TokenAnswer:
    """Ask the token. A false tag is `changed`, all else `away`."""
    begun = False
    try:
        pin = Path(question.pin_file).read_bytes().strip()
        module = _Module(question.module)
        session = _session(module, question.token, pin, writes=question.act == "create")
        if question.act == "create":
            return TokenAnswer(_create(module, session, question.key))
        key = _key(module, session, question.key)
        begun = True
        if question.act == "wrap":
            return TokenAnswer(_wrapped(module, session, key, question))
        return TokenAnswer(_unwrapped(module, session, key, question))
    except _Failed as error:
        changed = begun and question.act == "unwrap" and error.code in _CHANGED
        return TokenAnswer(
            fault=TokenFault.CHANGED if changed else TokenFault.AWAY, reason=str(error)
        )
    except (_Refused, OSError, AttributeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        text = reason if isinstance(error, _Refused) else f"can't be used: {reason}"
        return TokenAnswer(fault=TokenFault.AWAY, reason=text)


def _session(module: _Module, label: str, pin: bytes, *, writes: bool) -> int:
    flags = _CKF_SERIAL_SESSION | (_CKF_RW_SESSION if writes else 0)
    module.call("initialize", None)
    slots, count = (_ULONG * _MOST_SLOTS)(), _ULONG(_MOST_SLOTS)
    module.call("slots", 1, ctypes.addressof(slots), ctypes.addressof(count))
    for slot in slots[: count.value]:
        # CK_TOKEN_INFO begins with its label, 32 bytes padded with spaces.
        information = ctypes.create_string_buffer(512)
        module.call("token", slot, ctypes.addressof(information))
        if information.raw[:32].rstrip(b" ") != label.encode():
            continue
        session = _ULONG()
        module.call("session", slot, flags, None, None, ctypes.addressof(session))
        module.call("login", session.value, _CKU_USER, pin, len(pin))
        return session.value
    raise _Refused(f"is not there: no token is named {label!r}")


def _attributes(wanted: dict[int, bytes]) -> tuple[Any, list[Any]]:
    """The array, and the buffers that must live as long as it points to them."""
    values = [ctypes.create_string_buffer(each, len(each)) for each in wanted.values()]
    found = (
        _Attribute(kind, ctypes.addressof(value), len(value))
        for kind, value in zip(wanted, values, strict=True)
    )
    return (_Attribute * len(wanted))(*found), values


def _aes_key(label: str) -> dict[int, bytes]:
    return {
        _CKA_CLASS: bytes(_ULONG(_CKO_SECRET_KEY)),
        _CKA_KEY_TYPE: bytes(_ULONG(_CKK_AES)),
        _CKA_LABEL: label.encode(),
    }


def _found(module: _Module, session: int, label: str) -> list[int]:
    attributes, values = _attributes(_aes_key(label))
    module.call("find", session, ctypes.addressof(attributes), len(values))
    found, count = (_ULONG * 2)(), _ULONG()
    module.call("found", session, ctypes.addressof(found), 2, ctypes.addressof(count))
    module.call("find_end", session)
    return list(found[: count.value])


def _key(module: _Module, session: int, label: str) -> int:
    found = _found(module, session, label)
    if len(found) != 1:
        raise _Refused(f"has {'no key' if not found else 'two keys'} {label[:64]!r}")
    return found[0]


def _create(module: _Module, session: int, label: str) -> bytes:
    if _found(module, session, label):
        raise _Refused(f"has a key {label[:64]!r} already")
    yes, no = b"\x01", b"\x00"
    attributes, values = _attributes(
        {
            **_aes_key(label),
            _CKA_TOKEN: yes,
            _CKA_PRIVATE: yes,
            _CKA_SENSITIVE: yes,
            _CKA_EXTRACTABLE: no,
            _CKA_ENCRYPT: yes,
            _CKA_DECRYPT: yes,
            _CKA_VALUE_LEN: bytes(_ULONG(_KEY_BYTES)),
        }
    )
    mechanism, key = _Mechanism(_CKM_AES_KEY_GEN, None, 0), _ULONG()
    at, at_key = ctypes.addressof(mechanism), ctypes.addressof(key)
    module.call("generate", session, at, ctypes.addressof(attributes), len(values), at_key)
    return b""


def _mechanism(nonce: bytes, bound: bytes) -> tuple[_Mechanism, _GcmParameters]:
    parameters = _GcmParameters(
        nonce, len(nonce), 8 * len(nonce), bound, len(bound), 8 * _TAG_BYTES
    )
    size = ctypes.sizeof(parameters)
    # The second must live as long as the first points to it.
    return _Mechanism(_CKM_AES_GCM, ctypes.addressof(parameters), size), parameters


def _wrapped(module: _Module, session: int, key: int, question: TokenQuestion) -> bytes:
    nonce = secrets.token_bytes(_NONCE_BYTES)
    mechanism, parameters = _mechanism(nonce, question.bound)
    module.call("encrypt_begin", session, ctypes.addressof(mechanism), key)
    result = _result(module, "encrypt", session, question.data)
    del parameters
    return nonce + result


def _unwrapped(module: _Module, session: int, key: int, question: TokenQuestion) -> bytes:
    nonce, sealed = question.data[:_NONCE_BYTES], question.data[_NONCE_BYTES:]
    if len(sealed) < _TAG_BYTES:
        raise _Failed("decrypt", 0x41)
    mechanism, parameters = _mechanism(nonce, question.bound)
    module.call("decrypt_begin", session, ctypes.addressof(mechanism), key)
    result = _result(module, "decrypt", session, sealed)
    del parameters
    return result


def _result(module: _Module, name: str, session: int, data: bytes) -> bytes:
    size = _ULONG(len(data) + _TAG_BYTES)
    buffer = ctypes.create_string_buffer(size.value)
    at, at_size = ctypes.addressof(buffer), ctypes.addressof(size)
    module.call(name, session, data, len(data), at, at_size)
    return buffer.raw[: size.value]


def main() -> None:
    """TokenAnswer one question."""
    question = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TokenQuestion)
    sys.stdout.buffer.write(msgspec.msgpack.encode(answer_of(question)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
