"""Reports an event of this job to the agent of its node: it stands on the job's timeline.

The agent knows the job by the kernel's word. This sends no name of a job and no token. It raises
nothing and waits for some seconds at most: a training must not end because of its timeline.
"""

from __future__ import annotations

import json
import os
import socket

SOCKET = "/run/lattice-agent/job.sock"
"""Where sites usually have it; `LATTICE_JOB_SOCKET` names another path."""
_WAIT_S = 5.0
_LONGEST_ANSWER = 65536


def event(text: str, name: str = "", /, **attributes: str | float | bool) -> str:
    """Report an event. Return an empty text, or why it was not taken."""
    asked: dict[str, object] = {"text": text}
    if name:
        asked["name"] = name
    if attributes:
        asked["attributes"] = attributes
    try:
        answer = json.loads(_answer(json.dumps({"event": asked}).encode() + b"\n"))
        error = answer.get("error")
        return "" if error is None else str(error["message"])
    except OSError as fault:
        return f"The agent of this node does not answer: {fault.strerror or fault}."
    except Exception:  # noqa: BLE001 - whatever it is, the training goes on
        return "The event can't be sent, or its answer can't be read."


def _answer(line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_WAIT_S)
        asking.connect(os.environ.get("LATTICE_JOB_SOCKET", SOCKET))
        asking.sendall(line)
        found = b""
        while not found.endswith(b"\n") and len(found) < _LONGEST_ANSWER:
            part = asking.recv(4096)
            if not part:
                break
            found += part
        return found
