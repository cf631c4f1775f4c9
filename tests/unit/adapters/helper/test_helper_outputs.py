"""The outputs' port by the helper: every answer has its error, and no descriptor is ever lost."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.adapters.helper.channel import HelperChannel
from lattice.adapters.helper.outputs import BadOutputs, HelperOutputs, read_outputs
from lattice.base import packet
from lattice.base.errors import (
    DataUnavailable,
    InternalError,
    LatticeError,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.domain.outputs import OutputHolder, SkippedOutput
from lattice.domain.privileged import Answer, Outcome, read_request, write_answer


def _open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    before = _open()
    yield
    assert _open() <= before


def told(file: Path, **change: Any) -> dict[str, Any]:
    found = file.stat()
    return {
        "holders": [[7, 1, -1], [8, 2, 3]], "dev": found.st_dev, "ino": found.st_ino,
        "flags": 33793, "position": 3, "size": found.st_size, "born": 1.5, "path": "/x\x1b[2J",
        "watch": 1, "comm": "srun",
    } | change  # fmt: skip


class Served:
    """A helper's end of a socket that says what it is told to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "socket"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self.path))
        self._listener.listen()

    def answer(self, raw: bytes, descriptors: Sequence[int] = ()) -> None:
        connection, _ = self._listener.accept()
        with connection:
            asked, beside = packet.receive(connection)
            read_request(asked)
            packet.close_all(beside)
            if raw:
                packet.send(connection, raw, descriptors, most_descriptors=100)

    async def ask(
        self, raw: bytes, descriptors: Sequence[int] = (), verb: str = "open_output"
    ) -> Any:
        serving = asyncio.create_task(asyncio.to_thread(self.answer, raw, descriptors))
        port = HelperOutputs(HelperChannel(self.path, timeout_s=60))
        try:
            if verb == "note_output":
                return await port.note_output(7, (7,))
            if verb == "open_noted":
                return await port.open_noted("g", 1, 2, 3)
            return await port.open_output("g", (7,))
        finally:
            await serving

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.close()


def _done(files: list[dict[str, Any]], skipped: Any = ()) -> bytes:
    output = json.dumps({"files": files, "skipped": list(skipped)})
    return write_answer(Answer(outcome=Outcome.DONE, output=output))


@pytest.mark.spec("LOG-2")
async def test_what_was_opened_and_its_watch(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("hello")
    with file.open() as one:
        raw = _done([told(file)], [[7, 2, "it is a pipe"]])
        opened = await served.ask(raw, [one.fileno()])
        unwatched = await served.ask(_done([told(file, watch=-1)]), [one.fileno()])
    assert Path(f"/proc/self/fd/{opened.watch_fd}").readlink() == Path("anon_inode:inotify")
    assert unwatched.watch_fd is None
    unwatched.close()
    (found,) = opened.files
    assert os.pread(found.fd, 10, 0) == b"hello"
    assert found.holders == (OutputHolder(7, 1), OutputHolder(8, 2, 3))
    assert (found.path, found.comm, found.position, found.born) == ("/x␛[2J", "srun", 3, 1.5)
    assert opened.skipped == (SkippedOutput(OutputHolder(7, 2), "it is a pipe"),)
    opened.close()


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.FAILED, DataUnavailable),
        (Outcome.ACCOUNT_REFUSED, PermissionRefused),
        (Outcome.BAD_QUESTION, UsageError),
        (Outcome.BUSY, Unavailable),
        (Outcome.REFUSED, Unavailable),
        (Outcome.NOT_OFFERED, Unavailable),
        (Outcome.BROKEN, InternalError),
        (Outcome.UNSURE, InternalError),
    ],
)
async def test_each_answer_has_its_error(
    served: Served, tmp_path: Path, outcome: Outcome, kind: type[LatticeError]
) -> None:
    with (tmp_path / "x").open("w") as file:
        raw = write_answer(Answer(outcome=outcome, message="no\x1b[2J"))
        with pytest.raises(kind) as error:
            await served.ask(raw, [file.fileno()])
    assert type(error.value) is kind
    assert "\x1b" not in error.value.message


@pytest.mark.parametrize("verb", ["note_output", "open_noted"])
@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.FAILED, DataUnavailable),
        (Outcome.BUSY, Unavailable),
        (Outcome.REFUSED, Unavailable),
        # Of a helper that is older, or has no folder for notes: asking again changes nothing.
        (Outcome.BAD_QUESTION, DataUnavailable),
        (Outcome.NOT_OFFERED, DataUnavailable),
    ],
)
async def test_a_helper_without_notes_is_not_asked_for_ever(
    served: Served, verb: str, outcome: Outcome, kind: type[LatticeError]
) -> None:
    raw = write_answer(Answer(outcome=outcome, message="no"))
    with pytest.raises(kind):
        await served.ask(raw, verb=verb)


async def test_what_was_noted_and_by_whom_it_was_held(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("hello")
    holders = [[7, 1, 2, "0", False], [8, 5, -1, "0", True]]
    output = json.dumps({"files": [told(file, holders=holders)], "skipped": [], "more": True})
    raw = write_answer(Answer(outcome=Outcome.DONE, output=output))
    with file.open() as one:
        opened = await served.ask(raw, [one.fileno()], verb="open_noted")
    assert opened.more
    assert opened.files[0].holders == (
        OutputHolder(7, 1, 2, "0"),
        OutputHolder(8, 5, -1, "0", daemon=True),
    )
    opened.close()


@pytest.mark.parametrize("count", ["", "-1", "x", "1.5", "9" * 30, "٣"])
async def test_a_count_is_a_number(served: Served, count: str) -> None:
    raw = write_answer(Answer(outcome=Outcome.DONE, output=count))
    with pytest.raises(InternalError):
        await served.ask(raw, verb="note_output")
    three = write_answer(Answer(outcome=Outcome.DONE, output="3"))
    assert await served.ask(three, verb="note_output") == 3


@pytest.mark.parametrize("raw", [b"", b"{}", b"x", _done([]), _done([{}])])
async def test_broken_answers_are_errors(served: Served, tmp_path: Path, raw: bytes) -> None:
    with (tmp_path / "x").open("w") as file, pytest.raises((Unavailable, InternalError)):
        await served.ask(raw, [file.fileno()] * 3)


async def test_more_descriptors_than_any_answer_has(served: Served, tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as file, pytest.raises(Unavailable):
        await served.ask(_done([]), [file.fileno()] * 70)


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        await HelperOutputs(HelperChannel(tmp_path / "none")).open_output("g", (1,))


async def test_silence_has_an_end(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        asking = HelperOutputs(HelperChannel(tmp_path / "s", timeout_s=0.05))
        with pytest.raises(Unavailable, match="in time"):
            await asking.open_output_file("g", "/x")


async def test_what_can_not_be_asked_is_said_at_once(tmp_path: Path) -> None:
    asking = HelperOutputs(HelperChannel(tmp_path / "none"))
    with pytest.raises(UsageError):
        await asking.open_output("g", ())
    with pytest.raises(UsageError):
        await asking.open_output_file("g", "x")


@pytest.mark.parametrize(
    "change",
    [
        {"ino": 1},
        {"dev": 1},
        {"holders": [[1]]},
        {"holders": [1]},
        {"holders": [[True, 1, 1]]},
        {"holders": [[1, 1]]},
        {"holders": [[1, 1, 1, 1, True]]},
        {"holders": [[1, 1, 1, "0", 1]]},
        {"size": "5"},
        {"watch": None},
        {"born": "x"},
        {"more": 1},
    ],
)
def test_a_descriptor_must_be_the_file_it_is_said_to_be(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    file = tmp_path / "x"
    file.touch()
    text = json.dumps({"files": [told(file, **change)], "skipped": []})
    with file.open() as opened, pytest.raises(BadOutputs):
        read_outputs(text, [opened.fileno()])


def test_what_is_no_file_is_not_taken() -> None:
    device = Path("/dev/null")
    text = json.dumps({"files": [told(device)], "skipped": []})
    with device.open() as opened, pytest.raises(BadOutputs):
        read_outputs(text, [opened.fileno()])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=_JSON, skipped=_JSON, text=st.none() | st.text())
def test_any_answer_is_read_or_refused(files: Any, skipped: Any, text: Any) -> None:
    built = json.dumps({"files": files, "skipped": skipped})
    try:
        found = read_outputs(built if text is None else text, [])
    except BadOutputs:
        return
    assert found[0] == ()
