"""The words beside the frames: what goes out comes in, and nothing else does."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.features.attach.model import (
    LARGEST_WORD_BYTES,
    AttachToken,
    BadWord,
    ClientWord,
    Ended,
    EndReason,
    Failure,
    Keepalive,
    Notice,
    NoticeKind,
    Opened,
    ServerWord,
    Start,
    read_client_word,
    read_server_word,
    write_word,
)

TEXT = st.text(max_size=40)
SMALL = st.integers(-(2**31), 2**31)
STARTS = st.builds(
    Start,
    session=TEXT,
    resume=st.booleans(),
    node=TEXT,
    rank=st.none() | SMALL,
    command=st.lists(TEXT, max_size=5).map(tuple),
    terminal=TEXT,
    rows=SMALL,
    columns=SMALL,
    tools=TEXT,
)
TOKENS = st.builds(AttachToken, token=TEXT)
TIMES = st.floats(0, 4e9).map(lambda stamp: datetime.fromtimestamp(stamp, UTC))
SERVERS: st.SearchStrategy[ServerWord] = st.one_of(
    st.builds(
        Opened,
        node=TEXT,
        replica=TEXT,
        job=TEXT,
        user=TEXT,
        ends=st.none() | TIMES,
        recorded=st.booleans(),
        sequence=SMALL,
    ),
    st.builds(Notice, kind=st.sampled_from(NoticeKind), words=TEXT),
    st.builds(Failure, code=TEXT, message=TEXT, hint=st.none() | TEXT),
    st.builds(Ended, reason=st.sampled_from(EndReason), words=TEXT),
)
JSON = st.recursive(
    st.none() | st.booleans() | SMALL | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.spec("ATTACH-2")
@given(st.one_of(STARTS, TOKENS, st.just(Keepalive())))
def test_what_a_client_says_is_read_as_it_was_written(word: ClientWord) -> None:
    read = read_client_word(write_word(word))
    assert (type(read), read) == (type(word), word)


@pytest.mark.spec("ATTACH-2")
@given(SERVERS)
def test_what_a_server_says_is_read_as_it_was_written(word: ServerWord) -> None:
    read = read_server_word(write_word(word))
    assert (type(read), read) == (type(word), word)


@given(STARTS, TEXT, JSON)
def test_a_client_has_no_field_that_is_not_known(start: Start, name: str, value: Any) -> None:
    told = json.loads(write_word(start))
    if name in told:
        return
    with pytest.raises(BadWord, match="not known"):
        read_client_word(json.dumps(told | {name: value}))


@given(STARTS, st.sampled_from(["session", "resume", "command", "rows", "rank"]), JSON)
def test_a_field_is_of_its_type_or_refused(start: Start, name: str, value: Any) -> None:
    told = json.loads(write_word(start)) | {name: value}
    try:
        read = read_client_word(json.dumps(told))
    except BadWord:
        return
    kept = getattr(read, name)
    assert (list(kept) if isinstance(kept, tuple) else kept) == value
    assert type(value) is not bool or name == "resume"


@given(st.text(max_size=200) | JSON.map(json.dumps))
def test_any_text_is_a_word_or_refused(text: str) -> None:
    for read in (read_client_word, read_server_word):
        try:
            read(text)
        except BadWord:
            continue


def test_names_that_stand_twice_and_texts_that_are_too_long_are_refused() -> None:
    for text in (
        '{"type":"token","token":"a","token":"b"}',
        '{"type":"token","token":"' + "a" * LARGEST_WORD_BYTES + '"}',
        "[" * 10_000,
        '{"type":["start"]}',
        '{"type":"token"}',
    ):
        with pytest.raises(BadWord):
            read_client_word(text)


def test_a_newer_server_is_understood_as_far_as_possible() -> None:
    assert read_server_word('{"type":"weather","sun":true}') is None
    notice = read_server_word('{"type":"notice","kind":"eclipse","words":"dark","at":1}')
    assert notice == Notice(kind=NoticeKind.OTHER, words="dark")
    ended = read_server_word('{"type":"ended","reason":"eclipse"}')
    assert ended == Ended(reason=EndReason.OTHER)


def test_a_token_is_not_shown_by_accident() -> None:
    assert "s3cret" not in repr(AttachToken(token="s3cret"))
