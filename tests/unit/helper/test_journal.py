"""The helper's log: one line each, whole, whatever is said."""

from __future__ import annotations

import json
import os

from hypothesis import given
from hypothesis import strategies as st

from lattice.helper.journal import HelperJournal, Peer
from tests.fakes.manual_clock import ManualClock


@given(st.text())
def test_each_note_is_one_line_of_json(text: str) -> None:
    reader, writer = os.pipe()
    HelperJournal(ManualClock(), writer).note("refused", Peer(1, 2), reason=text)
    os.close(writer)
    raw = os.read(reader, 65536)
    os.close(reader)
    assert raw.count(b"\n") == 1
    line = json.loads(raw)
    assert line["reason"] == text[:300]
    assert (line["event"], line["peer_uid"]) == ("refused", 2)


def test_a_closed_log_stops_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    HelperJournal(ManualClock(), writer).note("act")
    os.close(writer)
