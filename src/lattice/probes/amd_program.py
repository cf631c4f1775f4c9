"""Runs the command `amd-smi`: what it prints is bounded, and so is the time that it may take."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from contextlib import suppress

PROGRAM = "amd-smi"
FOLDERS = ("/opt/rocm/bin",)
"""Besides those of the system."""
TIMEOUT_S = 10.0
MOST_BYTES = 4 * 1024 * 1024
_PIECE = 64 * 1024


class AmdCommandFailed(Exception):
    """The command was not carried out; the text is why."""


def find_program() -> str | None:
    """Where the command is, if it is installed."""
    return shutil.which(PROGRAM, path=os.pathsep.join((os.defpath, *FOLDERS)))


def run_program(program: str, *arguments: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """What it prints. Raises `AmdCommandFailed`."""
    environment = {"PATH": os.pathsep.join((os.defpath, *FOLDERS)), "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            [program, *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise AmdCommandFailed(f"{PROGRAM}: {error.strerror or error}") from None
    try:
        printed = _printed(process, time.monotonic() + timeout_s)
    finally:
        # Its children, too: one that hangs in the driver must not be joined by another.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if printed is None:
        raise AmdCommandFailed(f"{PROGRAM} {arguments[0]} took longer than {timeout_s:g} s")
    if len(printed) > MOST_BYTES:
        raise AmdCommandFailed(f"{PROGRAM} {arguments[0]} printed more than {MOST_BYTES} bytes")
    return printed


def _printed(process: subprocess.Popen[bytes], until_s: float) -> bytes | None:
    """None if it is not done in time; a byte too much is enough to know that it is too much."""
    assert process.stdout is not None
    found = bytearray()
    with process.stdout as pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(found) <= MOST_BYTES:
            if not selector.select(max(0.0, until_s - time.monotonic())):
                return None
            piece = os.read(pipe.fileno(), _PIECE)
            if not piece:
                break
            found += piece
    return bytes(found)
