"""The log: one line an event, with its request, and without anything that opens a door."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from lattice.base.loglines import _SECRET_TEXT, REDACTED, redact_text, redacted
from lattice.base.logs import configure_logging, request_context
from tests.fakes.identity_provider import b64

TOKEN = ".".join(map(b64, (b'{"alg":"ES256"}', b'{"sub":"u-1"}', bytes(range(64)))))


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


def written(console: bool = False, level: str = "info") -> tuple[Any, io.StringIO]:
    stream = io.StringIO()
    return configure_logging(level, console=console, stream=stream), stream


def test_a_line_is_json_with_its_request() -> None:
    log, stream = written()
    with request_context("r-1", rpc="ListNodes"):
        log.info("answered %s", "well", nodes=3)
    log.info("after")
    log.debug("unseen")
    first, second = [json.loads(each) for each in stream.getvalue().splitlines()]
    assert first.pop("time").endswith("Z")
    assert first == {
        "event": "answered well",
        "level": "info",
        "logger": "lattice",
        "nodes": 3,
        "request_id": "r-1",
        "rpc": "ListNodes",
    }
    assert "request_id" not in second


def test_lines_of_libraries_take_the_same_way() -> None:
    _, stream = written()
    with request_context("r-2"):
        logging.getLogger("some.library").warning("sent %s", TOKEN, extra={"password": "x", "n": 1})
    line = json.loads(stream.getvalue())
    assert line["event"] == f"sent {REDACTED}"
    assert (line["password"], line["n"], line["request_id"]) == (REDACTED, 1, "r-2")


@pytest.mark.parametrize("console", [False, True], ids=["json", "console"])
def test_no_secret_in_any_place_of_a_line(console: bool) -> None:
    log, stream = written(console)
    log.info(
        "Authorization: Bearer %s",
        TOKEN,
        token="t-hush",
        refresh_token="t-hush",
        oidc_hmac_secret="t-hush",
        Authorization="Basic dC1odXNo",
        headers={"cookie": "t-hush", "deep": [{"client_secret": "t-hush"}]},
        listed=[f"x {TOKEN} y"],
        raw=TOKEN.encode(),
        url="https://alice:t-hush@host/cb?code=t-hush&state=t-hush&access_token=t-hush",
        body='{"id_token": "t-hush", "x": 1}',
        form="password=t-hush&user=alice",
        pem="-----BEGIN PRIVATE KEY-----\nt-hush\n-----END PRIVATE KEY-----",
        error=ValueError(f"refused {TOKEN}"),
        **{TOKEN: "as a name"},
    )
    try:
        int(f"with Bearer {TOKEN}")
    except ValueError:
        log.exception("failed")
    text = stream.getvalue()
    assert "t-hush" not in text
    assert "dC1odXNo" not in text
    assert TOKEN.partition(".")[2] not in text
    assert TOKEN.rpartition(".")[2] not in text
    assert "invalid literal for int" in text


def test_what_is_no_secret_stays() -> None:
    log, stream = written()
    kept = {
        "token_file": "/etc/lattice/token",
        "jwks_uri": "https://idp.example/keys",
        "tokens_refused": 7,
        "needs_token": True,
        "node": "login-node-0001.compute-cluster.example.org",
        "warning": "c.yaml:3: api.oidc_hmac_secret: has 5 bytes; at least 32 are needed",
        "version": "0.1.0",
        "exit": "exit code: 137",
        "reason": "no ES256 key with kid 'abc'",
    }
    log.info("facts", **kept)
    line = json.loads(stream.getvalue())
    assert {name: line[name] for name in kept} == kept


def test_nothing_written_can_act_on_a_terminal() -> None:
    for console in (False, True):
        log, stream = written(console)
        log.info("job \x1b]52;c;aGk=\x07 \x9b31m \u202e", name="a\x1b[2Jb\rc")
        text = stream.getvalue()
        assert text.count("\n") == 1
        assert all(each.isprintable() for each in text.rstrip("\n")), ascii(text)


def test_one_event_is_one_line_whatever_it_holds() -> None:
    log, stream = written()
    log.info("a\nb", value={"c": "d\ne"}, strange={1: object(), "x": {1, 2}})
    assert len(stream.getvalue().splitlines()) == 1


def _cut_endless_text() -> float:
    begun = time.perf_counter()
    for text in (
        "a" * 5_000_000,
        "ey" * 1_000_000,
        "a." * 1_000_000,
        "token" * 500_000,
        "://" * 500_000,
    ):
        assert len(redact_text(text)) < 20_000
    return time.perf_counter() - begun


def test_endless_text_is_cut() -> None:
    _cut_endless_text()


@pytest.mark.timing
def test_endless_text_is_cut_within_five_seconds() -> None:
    assert _cut_endless_text() < 5


_PIECES = st.sampled_from(
    (
        *(
            "token",
            "Secret",
            "PASSWORD",
            "bearer",
            "BASIC",
            "ba\u017fic",
            "bas\u0131c",
            "negotiate",
        ),
        *("-----BEGIN RSA PRIVATE KEY-----", "-----END", "eyJhbGciOiJFUzI1NiJ9", "ew0KICAiYWxnIj"),
        *("abcdefghijklmnop", "?code", "&Sig", "://", "user:", "x", "\u212a"),
        *("=", ".", "@", " ", "'", '"', ":", "-", "\n", "\t"),
    )
)


@given(st.lists(_PIECES, max_size=12).map("".join))
def test_every_pattern_is_applied_where_it_matches(text: str) -> None:
    expected = text
    for pattern, instead, _ in _SECRET_TEXT:
        expected = pattern.sub(instead, expected)
    assert redact_text(text) == expected


def test_a_name_is_judged_the_same_each_time() -> None:
    long = "x" * 100 + "_token"
    for _ in range(2):
        shown = redacted({"api_key": "a", "key_file": "b", long: "c", f"at {TOKEN}": "d"})
        assert shown == {
            "api_key": REDACTED,
            "key_file": "b",
            long: REDACTED,
            f"at {REDACTED}": "d",
        }


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_token_is_taken_out_of_any_surroundings(before: str, after: str) -> None:
    shown = redact_text(f"{before} {TOKEN} {after}")
    assert TOKEN.split(".")[1] not in shown
    assert TOKEN.split(".")[2] not in shown
