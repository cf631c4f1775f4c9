"""Lines as bytes in a pipe: written as they came, and exactly what decoded lines would give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.domain.logs import LONGEST_LINE_BYTES, LogKind
from lattice.features.logs.blocks import LinesFrame
from lattice.features.logs.model import LogBlock
from lattice.features.logs.stream_dedup import LogDeduplicator
from tests.fakes.shell import FakeFollowed, FakeShell
from tests.unit.features.logs.test_logs_command import run, shell_of

TIME_MS = 1_800_000_000_000
OPTIONS = ((), ("--prefix", "none"), ("-t",), ("--raw",), ("--prefix", "node"), ("-o", "json"))


def frame(text: bytes, **changes: Any) -> LinesFrame:
    given: dict[str, Any] = {
        "node": "n1",
        "stream": LogKind.STDOUT,
        "source": "batch",
        "rank": None,
        "seq": 0,
        "count": text.count(b"\n"),
        "offset": 0,
        "time_ms": TIME_MS,
        "late": False,
        "cut": 0,
        "unfinished": False,
        "text": text,
    }
    return LinesFrame(**given | changes)


class BytesShell(FakeShell):
    """Counts what was written without decoding."""

    bytes_written = 0

    def write_bytes(self, text: bytes) -> None:
        self.bytes_written += len(text)
        super().write_bytes(text)


def shown(records: list[Any], *words: str) -> tuple[str, int]:
    output = "json" if "json" in words else "table"
    known = shell_of()
    shell = BytesShell(known.routes, output=output)
    shell.following = FakeFollowed(records)
    run(shell, "42", *(each for each in words if each not in {"-o", "json"}))
    return shell.out, shell.bytes_written


TEXTS = st.lists(
    st.sampled_from(
        [b"plain\n", b"a\tb\n", b"\x1b[31mred\x1b[0m\n", b"10%\r20%\n", b"\xff\n", b"\n", b"\x00\n",
         b'{"a":1}\n', "日本\n".encode(), b"x" * (LONGEST_LINE_BYTES + 1) + b"\n"]
    ),
    min_size=1,
    max_size=6,
).map(b"".join)  # fmt: skip


@pytest.mark.spec("LOG-4", "LOG-7")
@given(texts=st.lists(TEXTS, max_size=4), words=st.sampled_from(OPTIONS), two=st.booleans())
def test_bytes_are_shown_as_decoded_lines_are(
    texts: list[bytes], words: tuple[str, ...], two: bool
) -> None:
    frames: list[LinesFrame] = []
    for number, text in enumerate(texts):
        half = text.find(b"\n") + 1
        marks = ((half, TIME_MS), (len(text), TIME_MS + 1000)) if half < len(text) else ()
        node = "n2" if two and number % 2 else "n1"
        frames.append(frame(text, node=node, time_ms=TIME_MS + 1000, marks=marks))
    decoded = [each for one in frames for each in one.records()]
    assert shown(list(frames), *words)[0] == shown(list(decoded), *words)[0]


@pytest.mark.spec("LOG-7")
def test_plain_lines_are_written_as_they_came_and_others_are_not() -> None:
    plain = b"step 1 loss=0.5\nstep 2 loss=0.4\n"
    assert shown([frame(plain)]) == (plain.decode(), len(plain))
    out, as_bytes = shown([frame(b"a\x1b]52;c;ZXZpbA==\x07\n")])
    assert (out, as_bytes) == ("a␛]52;c;ZXZpbA==␇\n", 0)
    assert shown([frame(plain)], "-t")[1] == 0
    assert shown([frame(plain, cut=1)])[1] == 0
    assert shown([frame(b"a\x1b[2J\n")], "--raw") == ("a\x1b[2J\n", 6)


def test_the_beginning_of_a_line_waits_for_its_end() -> None:
    begun = frame(b"Pass", unfinished=True, count=0)
    assert shown([begun, frame(b"Password\n")])[0] == "Password\n"
    assert shown([begun])[0] == "Pass\n"


@pytest.mark.spec("LOG-4")
@given(known=st.integers(0, 6), first=st.integers(1, 9))
def test_lines_that_came_before_are_dropped(known: int, first: int) -> None:
    text = b"0\n11\n222\n3\n4\n"
    whole = frame(text, marks=((first, TIME_MS), (len(text), TIME_MS + 9)))
    once, decoded = LogDeduplicator(), LogDeduplicator()
    if known:
        before = frame(b"x\n" * known)
        assert [*once.record(before)] == [before]
        list(decoded.record(before.record()))
    frames = [each for each in once.record(whole) if isinstance(each, LinesFrame)]
    blocks = [each for one in whole.records() for each in decoded.record(one)]
    found = [each for one in frames for each in one.records()]
    assert found == [each for each in blocks if isinstance(each, LogBlock)]
    assert "".join(each.text for each in found) == "".join(
        text.decode().splitlines(keepends=True)[known:]
    )
