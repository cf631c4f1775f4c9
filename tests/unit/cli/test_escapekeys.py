"""The keys that are for the client."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.cli.escapekeys import LARGEST_TYPED_BYTES, EscapeAct, EscapeKeys


def typed(*pieces: bytes) -> tuple[bytes, list[EscapeAct]]:
    keys = EscapeKeys()
    # A second goes by between any two pieces.
    found = [part for now, piece in enumerate(pieces, 1) for part in keys.feed(piece, now)]
    sent = b"".join(part for part in found if isinstance(part, bytes))
    return sent, [part for part in found if isinstance(part, EscapeAct)]


@pytest.mark.spec("ATTACH-3")
@pytest.mark.parametrize(
    ("text", "sent", "acts"),
    [
        (b"~.", b"", [EscapeAct.LEAVE]),
        (b"ls\r~.", b"ls\r", [EscapeAct.LEAVE]),
        (b"ls\n~?", b"ls\n", [EscapeAct.HELP]),
        (b"~\x1a", b"", [EscapeAct.SUSPEND]),
        (b"~~", b"~", []),
        (b"~~.", b"~.", []),
        (b"a~.", b"a~.", []),
        (b"cd ~/x\r", b"cd ~/x\r", []),
        (b"~/bin\r", b"~/bin\r", []),
        (b"~\r~.", b"~\r", [EscapeAct.LEAVE]),
        (b"~?~.", b"", [EscapeAct.HELP, EscapeAct.LEAVE]),
        (b"~", b"", []),
    ],
)
def test_they_count_where_a_line_begins(text: bytes, sent: bytes, acts: list[EscapeAct]) -> None:
    assert typed(text) == (sent, acts)
    assert typed(*(bytes((key,)) for key in text)) == (sent, acts)


KEYS = st.lists(st.sampled_from([b"~", b".", b"?", b"\r", b"\n", b"a", b"\x1a"]), max_size=12)


@given(KEYS, st.data())
def test_how_typing_is_cut_makes_no_difference(keys: list[bytes], data: st.DataObject) -> None:
    text = b"".join(keys)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
    assert typed(*pieces) == typed(text)


@given(st.binary(max_size=60))
def test_without_a_tilde_everything_is_sent(text: bytes) -> None:
    text = text.replace(b"~", b"-")
    assert typed(text) == (text, [])


@pytest.mark.spec("ATTACH-3")
@given(st.binary(min_size=LARGEST_TYPED_BYTES + 1, max_size=400))
def test_what_is_pasted_ends_nothing(text: bytes) -> None:
    text += b"\r~.\r"
    assert typed(text) == (text, [])
    assert typed(b"~", text) == (b"~" + text, [])
    assert typed(text, b"~.") == (text, [EscapeAct.LEAVE])


def test_the_tail_of_a_paste_is_part_of_it_however_short() -> None:
    keys = EscapeKeys()
    pasted = b"x" * LARGEST_TYPED_BYTES + b"\r"
    assert keys.feed(pasted, 1.0) == [pasted]
    assert keys.feed(b"~.\r", 1.05) == [b"~.\r"]
    assert keys.feed(b"~.", 1.2) == [EscapeAct.LEAVE]
