"""A small S3 on loopback: enough of it to try a client without a real store.

It keeps objects in memory and judges no signature. `SpokenS3` is the handle.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import islice
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. `raw` is all of it."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    raw: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw(self, *, head_only: bool = False) -> bytes:
        lines = [f"HTTP/1.1 {self.status}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if "content-length" not in self.headers:
            lines.append(f"content-length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if head_only else self.body)


async def next_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None at its end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *rest = head.decode().rstrip("\r\n").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)
        }
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (asyncio.IncompleteReadError, OSError):
        return None
    method, target, _version = first.split(" ")
    return Request(method, target, headers, body, head + body)


class SpokenS3:
    """`address` is where it listens; `objects` is what it holds; `signed` whether requests were."""

    def __init__(self, bucket: str, context: ssl.SSLContext | None = None) -> None:
        self._bucket = bucket
        self._context = context
        self.objects: dict[str, bytes] = {}
        self.signed: set[bool] = set()
        self._since = datetime.now(UTC)
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        # Connections that a client keeps open are closed before the loop is.
        for each in self._serving:
            each.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(OSError, asyncio.CancelledError):
                while request := await next_request(reader):
                    answer = self._answer(request)
                    writer.write(answer.raw(head_only=request.method == "HEAD"))
                    await writer.drain()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            self._serving.discard(task)

    def _answer(self, request: Request) -> Answer:
        self.signed.add("authorization" in request.headers)
        url = urlsplit(request.target)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if bucket != self._bucket:
            return Answer("404 Not Found", b"<Error><Code>NoSuchBucket</Code></Error>")
        if not key:
            return self._list({name: value[0] for name, value in parse_qs(url.query).items()})
        if request.method == "PUT":
            return self._put(key, request)
        if request.method == "DELETE":
            self.objects.pop(key, None)
            return Answer("204 No Content")
        if key not in self.objects:
            return Answer("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>")
        return _read(self.objects[key], self._since, request.headers.get("range", ""))

    def _put(self, key: str, request: Request) -> Answer:
        if request.headers.get("if-none-match") == "*" and key in self.objects:
            return Answer("412 Precondition Failed")
        self.objects[key] = request.body
        return Answer("200 OK", headers={"etag": _tag(request.body)})

    def _list(self, query: Mapping[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        found: dict[str, str] = {}
        for key in sorted(self.objects):
            if not key.startswith(prefix):
                continue
            folder, slash, _ = key[len(prefix) :].partition("/")
            if delimiter and slash:
                name = f"{prefix}{folder}/"
                text = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            else:
                name, body = key, self.objects[key]
                text = (
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(body)}</Size>"
                    f"<LastModified>{self._since.isoformat()}</LastModified>"
                    f"<ETag>{escape(_tag(body))}</ETag></Contents>"
                )
            if name > after:
                found[name] = text
        page = dict(islice(found.items(), _PAGE))
        more = (
            f"<NextContinuationToken>{escape(list(page)[-1])}</NextContinuationToken>"
            if len(found) > _PAGE
            else ""
        )
        whole = f"<ListBucketResult>{more}{''.join(page.values())}</ListBucketResult>"
        return Answer("200 OK", whole.encode(), {"content-type": "application/xml"})


def _read(body: bytes, since: datetime, wanted: str) -> Answer:
    headers = {"etag": _tag(body), "last-modified": format_datetime(since, usegmt=True)}
    if not wanted:
        return Answer("200 OK", body, {**headers, "content-length": str(len(body))})
    first, _, last = wanted.removeprefix("bytes=").partition("-")
    begin = int(first) if first else max(0, len(body) - int(last))
    end = min(len(body), int(last) + 1) if first and last else len(body)
    if begin >= len(body):
        return Answer("416 Range Not Satisfiable")
    headers["content-range"] = f"bytes {begin}-{end - 1}/{len(body)}"
    return Answer("206 Partial Content", body[begin:end], headers)


def _tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()}"'
