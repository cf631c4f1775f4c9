"""AMD's library `libamd_smi.so`, by ctypes: only this module knows its functions and structures.

AMD's Python binding must be of the same release as the library, and prints to the standard output
if it is not. So the library of the node's own ROCm is called directly. Only functions and leading
fields are used that are the same in all releases from 6.0 on. The structures that changed are read
by the library's version, and not at all for versions that are not known.

Every failed call raises `AmdSmiFailed` with the library's own text. After a failed start it waits
30 s, because a broken driver can take seconds to fail.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lattice.base.clock import Clock
from lattice.base.text import inert
from lattice.probes.nvml import AMD_DRIVER
from lattice.probes.probe import ProbeFailed

NOT_INSTALLED = "amd-smi's library is not installed"
NO_DRIVER = "this node has no AMD driver"
NO_CARDS = "this node has no AMD GPU"
BROKEN = "the AMD driver of this node does not answer"

LIBRARIES = (
    "libamd_smi.so",
    "/opt/rocm/lib/libamd_smi.so",
    *(f"libamd_smi.so.{release}" for release in (27, 26, 25, 24)),
)
"""Of a distribution's package; of ROCm; of a package without the file that only compilers need."""
_GPUS = 2
"""Of `amdsmi_init`: only GPUs."""
_AMD_GPU = 1
_NOT_SUPPORTED = frozenset({2, 3, 5, 40, 55})
_LOST = frozenset({6, 12, 31})
"""DRM error, input or output error, not found: of a card that answered before."""
_ENDS_SESSION = frozenset({18, 32, 34, 51})
"""Not initialized, or the driver is not loaded."""
_ROOM = 16 * 1024
"""Bytes for a structure: more than any release writes."""
_MOST_SOCKETS, _MOST_PROCESSORS = 64, 256
_LONGEST_TEXT = 200
_RETRY_S = 30.0


class AmdSmiFailed(Exception):
    """The library returned an error; `text` is its own message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def not_supported(self) -> bool:
        """Whether the card, the driver or the library does not have the function at all."""
        return self.code in _NOT_SUPPORTED

    @property
    def lost(self) -> bool:
        return self.code in _LOST

    @property
    def ends_session(self) -> bool:
        """Whether the library must be initialized again before any further call."""
        return self.code in _ENDS_SESSION


def load_library() -> Any:
    """The library of the node's ROCm. Raises `ProbeFailed`."""
    text = ""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            text = text or str(error)
    raise ProbeFailed(NOT_INSTALLED, inert(text)[:_LONGEST_TEXT])


class AmdSmi:
    """The library, initialized on first use."""

    def __init__(
        self,
        clock: Clock,
        *,
        load: Callable[[], Any] = load_library,
        retry_s: float = _RETRY_S,
        driver: Path = AMD_DRIVER,
    ) -> None:
        """`load` returns the library; it raises `ProbeFailed`. `driver`: there with the driver."""
        self._clock = clock
        self._load = load
        self._retry_s = retry_s
        self._driver = driver
        self._library: Any = None
        self._started = False
        self._failed: tuple[float, ProbeFailed] | None = None
        self.session = 0
        """The number of this start: handles of an earlier one are invalid."""

    def start(self) -> None:
        """Initialize the library if needed. Raises `ProbeFailed`."""
        if self._started:
            return
        now = self._clock.monotonic()
        if self._failed is not None and now < self._failed[0]:
            raise self._failed[1]
        try:
            self._start()
        except ProbeFailed as failed:
            self._failed = (now + self._retry_s, failed)
            raise
        self._failed = None
        self._started = True
        self.session += 1

    def _start(self) -> None:
        if not self._driver.exists():
            raise ProbeFailed(NO_DRIVER)
        if self._library is None:
            self._library = self._load()
        try:
            self._call("amdsmi_init", ctypes.c_uint64(_GPUS))
        except AmdSmiFailed as failed:
            raise ProbeFailed(BROKEN, f"Failed to initialize amd-smi: {failed.text}") from None

    def stop(self) -> None:
        """Shut the library down; the next reading starts it again."""
        if self._started:
            self._started = False
            self._library.amdsmi_shut_down()

    def handles(self) -> list[int]:
        """The handles of all GPUs. Raises `AmdSmiFailed`."""
        found = []
        for socket in self._list("amdsmi_get_socket_handles", _MOST_SOCKETS):
            for each in self._list("amdsmi_get_processor_handles", _MOST_PROCESSORS, socket):
                kind = ctypes.c_uint32()
                self._call("amdsmi_get_processor_type", ctypes.c_void_p(each), ctypes.byref(kind))
                if kind.value == _AMD_GPU:
                    found.append(each)
        return found

    def text(self, function: str, handle: int) -> str:
        """A text of up to 255 characters. Raises `AmdSmiFailed`."""
        buffer, size = ctypes.create_string_buffer(_ROOM), ctypes.c_uint32(256)
        if function == "amdsmi_get_gpu_device_uuid":
            self.call(function, handle, ctypes.byref(size), buffer)
        else:
            self.call(function, handle, buffer, size)
        return buffer.value.decode("utf-8", "replace")

    def number(
        self, function: str, handle: int, *arguments: int, kind: Any = ctypes.c_uint64
    ) -> int:
        """One number. Raises `AmdSmiFailed`."""
        value = kind()
        numbers = (ctypes.c_uint32(each) for each in arguments)
        self.call(function, handle, *numbers, ctypes.byref(value))
        return int(value.value)

    def structure(self, function: str, handle: int, *arguments: int) -> bytes:
        """The bytes of a structure. What the library does not write is a blank.

        Raises `AmdSmiFailed`.
        """
        buffer = ctypes.create_string_buffer(b"\xff" * _ROOM, _ROOM)
        numbers = (ctypes.c_uint32(each) for each in arguments)
        self.call(function, handle, *numbers, buffer)
        return buffer.raw

    def block_errors(self, handle: int, block: int) -> bytes:
        """The error counts of one part of a card. Raises `AmdSmiFailed`."""
        buffer = ctypes.create_string_buffer(b"\xff" * _ROOM, _ROOM)
        self.call("amdsmi_get_gpu_ecc_count", handle, ctypes.c_uint64(block), buffer)
        return buffer.raw

    def energy_microjoules(self, handle: int) -> float:
        """Counted since the driver was loaded. Raises `AmdSmiFailed`."""
        count, resolution, stamp = ctypes.c_uint64(), ctypes.c_float(), ctypes.c_uint64()
        self.call(
            "amdsmi_get_energy_count",
            handle,
            *(ctypes.byref(each) for each in (count, resolution, stamp)),
        )
        return count.value * resolution.value

    def release(self) -> int:
        """The first number of the library's version: 24 with ROCm 6.0 to 6.3, 26 with 7.0."""
        buffer = ctypes.create_string_buffer(_ROOM)
        self._call("amdsmi_get_lib_version", buffer)
        return int.from_bytes(buffer.raw[:4], "little")

    def call(self, function: str, handle: int, *arguments: Any) -> None:
        """Call a function about a card. Raises `AmdSmiFailed`."""
        self._call(function, ctypes.c_void_p(handle), *arguments)

    def _list(self, function: str, most: int, *of: int) -> list[int]:
        count, above = ctypes.c_uint32(), [ctypes.c_void_p(each) for each in of]
        self._call(function, *above, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * min(count.value, most))()
        count.value = len(handles)
        if handles:
            self._call(function, *above, ctypes.byref(count), handles)
        return [each for each in handles if each]

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self._library, name, None)
        if function is None:
            raise AmdSmiFailed(5, f"this release of amd-smi has no {name}")
        code = int(function(*arguments)) & 0xFFFF_FFFF
        if code:
            failed = AmdSmiFailed(code, self._text_of(code))
            if failed.ends_session:
                self.stop()
            raise failed

    def _text_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.amdsmi_status_code_to_string(ctypes.c_uint32(code), ctypes.byref(text))
        found = (text.value or b"").decode("utf-8", "replace")
        return inert(found)[:_LONGEST_TEXT] or f"status {code}"
