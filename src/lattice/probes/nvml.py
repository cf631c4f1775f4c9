"""NVML through NVIDIA's own binding, loaded late: only this module uses `pynvml`.

Every failed call raises `NvmlFailed` with NVML's own text. The library stays initialized between
readings, and is initialized again after it was lost. After a failed start it waits 30 s, because a
broken driver can take seconds to fail.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lattice.base.clock import Clock
from lattice.base.text import inert
from lattice.probes.probe import ProbeFailed

NOT_INSTALLED = "nvidia-ml-py is not installed"
NO_DRIVER = "this node has no NVIDIA driver"
NO_CARDS = "this node has no NVIDIA GPU"
AMD_CARDS = "this node's GPUs are AMD's: start the agent again to measure them"
AMD_DRIVER = Path("/sys/class/kfd/kfd")
"""There while AMD's driver serves cards for computing."""
BROKEN = "the NVIDIA driver of this node does not answer"

NOT_SUPPORTED = 3
NOT_FOUND = 6
TIMEOUT = 10
GPU_IS_LOST = 15
RESET_REQUIRED = 16
_UNINITIALIZED = 1
_DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_FUNCTION_NOT_FOUND = 13
_UNKNOWN = 999
_LIBRARY = "libnvidia-ml.so.1"
_LONGEST_TEXT = 200
_RETRY_S = 30.0


class NvmlFailed(Exception):
    """NVML returned an error; `text` is its own message."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def not_supported(self) -> bool:
        """Whether the card or the driver does not have the function at all."""
        return self.code in (NOT_SUPPORTED, _FUNCTION_NOT_FOUND)

    @property
    def lost(self) -> bool:
        return self.code in (GPU_IS_LOST, RESET_REQUIRED)

    @property
    def ends_session(self) -> bool:
        """Whether NVML must be initialized again before any further call."""
        return self.code in (_UNINITIALIZED, _DRIVER_NOT_LOADED)


def load_binding() -> Any:
    """NVIDIA's binding. Raises `ImportError`, and `ProbeFailed` if there is no driver.

    It takes megabytes, so a node without the driver does not load it.
    """
    if importlib.util.find_spec("pynvml") is None:
        raise ImportError(NOT_INSTALLED)
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise ProbeFailed(NO_DRIVER, inert(str(error))[:_LONGEST_TEXT]) from None
    return importlib.import_module("pynvml")


class Nvml:
    """NVML, initialized on first use."""

    def __init__(
        self,
        clock: Clock,
        *,
        load: Callable[[], Any] | None = None,
        retry_s: float = _RETRY_S,
        amd_driver: Path = AMD_DRIVER,
    ) -> None:
        """`load` returns the binding; it raises `ImportError` if that is not installed."""
        self._amd_driver = amd_driver
        self._clock = clock
        self._load = load or load_binding
        self._retry_s = retry_s
        self._binding: Any = None
        self._started = False
        self._failed: tuple[float, ProbeFailed] | None = None
        self.session = 0
        """The number of this start: handles of an earlier one are invalid."""

    def start(self) -> None:
        """Initialize NVML if needed. Raises `ProbeFailed`."""
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
        if self._binding is None:
            try:
                self._binding = self._load()
            except ImportError:
                raise self._absent(NOT_INSTALLED) from None
            except ProbeFailed as none:
                raise self._absent(none.reason, none.last_error) from None
        try:
            self._binding.nvmlInit()
        except self._binding.NVMLError as error:
            failed = self._failure(error)
            if failed.code == _LIBRARY_NOT_FOUND:
                raise self._absent(NO_DRIVER, failed.text) from None
            raise ProbeFailed(BROKEN, f"Failed to initialize NVML: {failed.text}") from None

    def _absent(self, reason: str, text: str = "") -> ProbeFailed:
        """Why there is nothing of NVIDIA: on a node with AMD's cards nothing of it is missing."""
        return ProbeFailed(AMD_CARDS if self._amd_driver.exists() else reason, text)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the binding. Raises `NvmlFailed`."""
        try:
            return getattr(self._binding, name)(*arguments)
        except self._binding.NVMLError as error:
            failed = self._failure(error)
            if failed.ends_session:
                self.stop()
            raise failed from None

    def constant(self, name: str) -> int:
        return int(getattr(self._binding, name))

    def stop(self) -> None:
        """Shut NVML down; the next reading starts it again."""
        if self._started:
            self._started = False
            try:
                self._binding.nvmlShutdown()
            except self._binding.NVMLError:
                return

    def _failure(self, error: Any) -> NvmlFailed:
        code = int(getattr(error, "value", _UNKNOWN))
        try:
            text = self._binding.nvmlErrorString(code)
        except self._binding.NVMLError:
            # The library is not loaded.
            text = str(error)
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        return NvmlFailed(code, inert(str(text))[:_LONGEST_TEXT])
