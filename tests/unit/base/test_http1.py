from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.base.errors import ConfigurationError
from lattice.base.fast_start.connector import BadReply, Unreached
from lattice.base.fast_start.http1 import HttpTarget, StreamedReply, _Stream, tls_context
from tests.eventually import eventually
from tests.fakes.web import Answer, web


@contextmanager
def talker(*replies: bytes, wait_s: float = 0.0) -> Iterator[tuple[str, list[bytes]]]:
    """Listens, reads a request, sends exactly these bytes and closes."""
    listening = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []
    over = threading.Event()

    def serve() -> None:
        for reply in replies:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                heard.append(connection.recv(65536))
                if over.wait(wait_s):
                    return
                connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
    finally:
        over.set()
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing would not
        thread.join(60)
        listening.close()


def ask(reply: bytes, timeout_s: float = 60.0) -> bytes:
    with talker(reply) as (url, _):
        return HttpTarget(timeout_s=timeout_s).exchange("GET", url, {}).body


def stream(url: str, headers: dict[str, str], silence_s: float) -> StreamedReply:
    return HttpTarget().connect((url,)).stream(url, headers, silence_s=silence_s)


def test_body_by_length() -> None:
    assert ask(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more") == b"hello"


def test_body_to_the_end() -> None:
    assert ask(b"HTTP/1.0 200 OK\r\n\r\nhello") == b"hello"


def test_body_in_chunks_with_extensions_and_trailers() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply = head + b"3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nA: b\r\n\r\n"
    assert ask(reply) == b"hello"


def test_interim_answers_are_passed_over() -> None:
    assert (
        ask(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") == b"ok"
    )


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000,
    ],
)
def test_what_is_not_whole_is_refused(reply: bytes) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        ask(reply)


def test_a_length_of_thousands_of_digits_is_refused() -> None:
    # Python itself refuses to read it, by a ValueError that no caller expects.
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: " + b"1" * 5000 + b"\r\n\r\nhello"
    with pytest.raises(BadReply):
        ask(reply)
    with pytest.raises(BadReply):
        pieces(reply)


@pytest.mark.parametrize(
    "header",
    [
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: chunked, gzip",
        b"Transfer-Encoding: gzip",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Content-Length: 1\r\nContent-Length: 3",
    ],
)
def test_a_body_has_one_length(header: bytes) -> None:
    reply = b"HTTP/1.1 200 OK\r\n" + header + b"\r\n\r\n0\r\n\r\n"
    with pytest.raises(BadReply):
        ask(reply)
    with pytest.raises(BadReply):
        pieces(reply)


def test_the_same_length_may_be_said_twice() -> None:
    length = b"Content-Length: 5\r\n"
    assert ask(b"HTTP/1.1 200 OK\r\n" + length + length + b"\r\nhello") == b"hello"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5",
        b"HTTP/1.1 200 OK\r\n: 5",
        b"HTTP/1.1 200 OK\r\nA: b\r\n Content-Length: 5",
        b"HTTP/1.1 200 OK\r\nA: b\nContent-Length: 5",
        b"HTTP/1.1 200 OK\r\nA: b\rc",
        b"HTTP/1.1 200 OK\r\nA: b\0c",
        b"HTTP/1.1 200 OK\r\nContent-Length:\xa05",
        b"HTTP/1.1 200 OK\nA: b",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 200OK",
        b"HTTP/1.1 099 OK",
        b"HTTP/1.1 100 Continue\r\nno colon\r\n\r\nHTTP/1.1 200 OK",
        b"HTTP/1.1 100 Continue\r\nTransfer-Encoding: gzip\r\n\r\nHTTP/1.1 200 OK",
    ],
)
def test_a_head_that_others_could_read_another_way_is_refused(head: bytes) -> None:
    with pytest.raises(BadReply):
        ask(head + b"\r\n\r\nhello")


def test_another_protocol_that_was_not_asked_for_is_refused() -> None:
    with pytest.raises(BadReply, match="switched"):
        ask(b"HTTP/1.1 101 Switching\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize("status", [b"204", b"304"])
def test_an_answer_without_a_body_has_none_though_it_names_a_length(status: bytes) -> None:
    reply = b"HTTP/1.1 " + status + b" Nothing\r\nContent-Length: 5\r\n\r\n"
    assert ask(reply) == b""
    assert pieces(reply) == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_any_bytes_end_in_an_answer_or_an_oserror(tail: bytes) -> None:
    with suppress(OSError):
        ask(b"HTTP/1.1 200 OK\r\n" + tail, timeout_s=60.0)


def test_redirects_are_answers() -> None:
    with web({"/": Answer(status=302, headers={"Location": "http://127.0.0.1:1/"})}) as server:
        reply = HttpTarget().exchange("GET", server.url + "/", {})
        assert reply.status == 302
        assert len(server.requests) == 1


def _exchange_with_a_silent_server() -> float:
    with talker(b"HTTP/1.1 200 OK\r\n\r\n", wait_s=60.0) as (url, _):
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            HttpTarget(timeout_s=0.2).exchange("GET", url, {})
        return time.monotonic() - begun


def test_a_silent_server_is_given_up() -> None:
    _exchange_with_a_silent_server()


@pytest.mark.timing
def test_a_silent_server_is_given_up_within_a_second() -> None:
    assert _exchange_with_a_silent_server() < 0.9


def test_a_header_can_not_smuggle_another() -> None:
    with pytest.raises(BadReply), talker(b"") as (url, _):
        HttpTarget().exchange("GET", url, {"X-A": "b\r\nX-C: d"})


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/", "https://"])
def test_only_web_addresses(url: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        HttpTarget().exchange("GET", url, {})


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def serving(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def test_tls_is_verified_by_authority_and_name(authority: trustme.CA, tmp_path: object) -> None:
    with authority.cert_pem.tempfile() as ca:
        with web({"/": {}}, context=serving(authority, "127.0.0.1")) as server:
            assert (
                HttpTarget(context=tls_context(ca)).exchange("GET", server.url + "/", {}).status
                == 200
            )
            with pytest.raises(ssl.SSLCertVerificationError):
                HttpTarget(context=tls_context()).exchange("GET", server.url + "/", {})
        with (
            web({"/": {}}, context=serving(authority, "other.example")) as server,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            HttpTarget(context=tls_context(ca)).exchange("GET", server.url + "/", {})


def test_old_tls_is_refused(authority: trustme.CA) -> None:
    context = serving(authority, "127.0.0.1")
    assert tls_context().minimum_version == ssl.TLSVersion.TLSv1_2
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with authority.cert_pem.tempfile() as ca, web({"/": {}}, context=context) as server:
        assert (
            HttpTarget(context=tls_context(ca)).exchange("GET", server.url + "/", {}).status == 200
        )


def test_client_certificate_is_shown(authority: trustme.CA) -> None:
    context = serving(authority, "127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    mine = authority.issue_cert("alice@example.org")
    with (
        authority.cert_pem.tempfile() as ca,
        mine.private_key_and_cert_chain_pem.tempfile() as own,
        web({"/": {}}, context=context) as server,
    ):
        assert (
            HttpTarget(context=tls_context(ca, own)).exchange("GET", server.url + "/", {}).status
            == 200
        )
        with pytest.raises(OSError):  # noqa: PT011
            HttpTarget(context=tls_context(ca)).exchange("GET", server.url + "/", {})


def test_certificates_that_can_not_be_read_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="/no/such/file"):
        tls_context("/no/such/file")


def test_proxy_is_asked_for_a_tunnel_and_only_for_others() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\n\r\n"
    with talker(refusal, refusal) as (url, heard):
        environment = {
            "HTTPS_PROXY": url.replace("//", "//user:p%40ss@"),
            "NO_PROXY": ".local,x.example",
        }
        door = HttpTarget(environment=environment, connect_timeout_s=30)
        with pytest.raises(BadReply, match="refused"):
            door.exchange("GET", "https://lattice.example:8443/", {})
        for near in ("https://127.0.0.1:1/", "https://x.example:1/", "https://a.local:1/"):
            with pytest.raises(OSError):  # noqa: PT011
                door.exchange("GET", near, {})
        assert len(heard) == 1
        assert heard[0].startswith(b"CONNECT lattice.example:8443 HTTP/1.1\r\n")
        assert b"Proxy-Authorization: Basic dXNlcjpwQHNz\r\n" in heard[0]


@pytest.mark.parametrize("kind", ["https", "HTTPS", "socks5"])
def test_a_proxy_that_would_be_dialled_without_its_encryption_is_refused(kind: str) -> None:
    with talker(b"") as (url, heard):
        proxy = url.replace("http://", f"{kind}://user:secret@")
        door = HttpTarget(environment={"https_proxy": proxy})
        with pytest.raises(ConfigurationError, match="only one at http://") as caught:
            door.exchange("GET", "https://lattice.example:8443/", {})
        with pytest.raises(OSError):  # noqa: PT011 - a near server needs no proxy
            door.exchange("GET", "https://127.0.0.1:1/", {})
        assert heard == [], "neither the request nor the password was sent"
    assert "https_proxy=http://HOST:PORT" in (caught.value.hint or "")
    assert "secret" not in caught.value.message


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_many_chunks_that_come_at_once() -> None:
    many = b"".join(b"5\r\nhello\r\n" for _ in range(2000))
    assert ask(CHUNKED + many + b"0\r\n\r\n") == b"hello" * 2000


@pytest.mark.parametrize(
    "chunks",
    [
        b"0x5\r\nhello\r\n0\r\n\r\n",
        b"+5\r\nhello\r\n0\r\n\r\n",
        b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
        b"\x0b5\r\nhello\r\n0\r\n\r\n",
        b"5;a\nb\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhelloXX0\r\n\r\n",
        b"f" * 21 + b"\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_a_chunk_has_a_size_in_digits_and_an_end(chunks: bytes) -> None:
    with pytest.raises(BadReply):
        ask(CHUNKED + chunks)
    with pytest.raises(BadReply):
        pieces(CHUNKED + chunks)


class InPieces:
    """A connection on which bytes come so many at a time."""

    def __init__(self, raw: bytes, size: int) -> None:
        self._pieces = [raw[at : at + size] for at in range(0, len(raw), size)]

    def settimeout(self, left_s: float) -> None:
        pass

    def recv(self, most: int) -> bytes:
        return self._pieces.pop(0)[:most] if self._pieces else b""


@pytest.mark.parametrize("size", [1, 2, 5000])
def test_the_longest_line_may_come_in_any_pieces(size: int) -> None:
    def until(raw: bytes) -> bytes:
        connection: Any = InPieces(raw, size)
        return _Stream(connection, time.monotonic() + 60).until(b"\r\n\r\n", 1000)

    assert len(until(b"x" * 1000 + b"\r\n\r\n")) == 1000
    with pytest.raises(BadReply):
        until(b"x" * 1001 + b"\r\n\r\n")


def pieces(reply: bytes, silence_s: float = 5.0) -> list[bytes]:
    with talker(reply) as (url, _), stream(url, {}, silence_s) as found:
        return list(found.pieces())


@pytest.mark.parametrize(
    "reply",
    [
        CHUNKED + b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
)
def test_a_body_that_is_read_as_it_comes(reply: bytes) -> None:
    assert b"".join(pieces(reply)) == b"hello"


def test_a_large_chunk_is_never_held_as_a_whole() -> None:
    body = b"x" * 1_000_000
    found = pieces(CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
    assert b"".join(found) == body
    assert max(map(len, found)) <= 64 * 1024


@pytest.mark.parametrize(
    "reply",
    [
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"5\r\nhello\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + b"-5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nshort",
    ],
)
def test_a_stream_that_breaks_off_says_so(reply: bytes) -> None:
    with pytest.raises(OSError):  # noqa: PT011
        pieces(reply)


def test_a_stream_may_be_silent_for_so_long_and_no_longer() -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(CHUNKED + b"2\r\nhi\r\n")
            connection.recv(1)  # until the caller hangs up

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    with stream(url, {"Accept": "text/event-stream"}, 0.2) as reply:
        found = reply.pieces()
        assert next(found) == b"hi"
        with pytest.raises(TimeoutError):
            next(found)
    thread.join(5)
    assert not thread.is_alive(), "it hangs up at the end"
    listening.close()


@given(st.binary(max_size=200))
def test_any_stream_ends_in_pieces_or_an_oserror(tail: bytes) -> None:
    with suppress(OSError):
        pieces(CHUNKED + tail, silence_s=2.0)


def test_other_work_is_done_while_a_server_prepares_its_part_of_tls() -> None:
    first: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def meanwhile() -> None:
            connection, _ = listener.accept()
            with connection:
                first.append(connection.recv(1))

        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Unreached):
            HttpTarget(context=tls_context()).connect((url,), meanwhile=meanwhile)
    assert first == [b"\x16"], "once, after the client's first message"


def test_other_work_is_done_while_a_server_prepares_its_reply() -> None:
    done: list[str] = []
    with web({"/": {}}) as server:

        def meanwhile() -> None:
            eventually(lambda: server.requests)
            done.append("after the request was sent")

        connection = HttpTarget().connect((server.url,))
        with connection.upgrade(server.url + "/", {}, meanwhile=meanwhile) as reply:
            assert reply.status == 200
    assert done == ["after the request was sent"]
