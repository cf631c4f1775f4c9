"""`S3ObjectStore`: the port `ObjectStore` over any S3 with put-if-absent, by obstore.

obstore's own retries are off. If a key exists, only the sender can know whether its own earlier try
wrote it. Every option that obstore would take from the environment (`AWS_*`) is set here, so only
the configuration decides. Proxies are the exception. obstore also follows redirects, and has no
option against that: `_no_detours` blocks them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from lattice.adapters.objects import LARGEST_BODY_BYTES, CallLimits
from lattice.adapters.objects.inorder import OrderLevel, in_key_order
from lattice.base.clock import Clock
from lattice.base.errors import ConfigurationError, Unavailable
from lattice.domain.objects import NoObject, ObjectInfo, check_key, check_prefix

if TYPE_CHECKING:
    from obstore import GetOptions, GetResult, ListStream, ObjectMeta
    from obstore.store import ClientConfig, S3Credential

T = TypeVar("T")

_MOST_AT_ONCE = 10_000
"""How many keys are held in memory for sorting."""
_LISTED_BYTES = 400
"""The approximate size of one key of a listing on the wire."""
_KEYS_LIVE = timedelta(minutes=6)
"""obstore requests keys again 5 minutes before they expire: so it reads the files each minute."""
_NOBODY = "http://127.0.0.1:0"
"""A proxy that can't exist: no process can listen on port 0."""
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z -]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Address:
    """The store's address and credentials. Keys are read from their files each minute."""

    bucket: str
    prefix: str = ""
    endpoint: str
    region: str
    access_key_file: Path
    secret_key_file: Path
    ca: Path | None = None
    allow_http: bool = False


class S3ObjectStore:
    """One bucket, or a prefix in it."""

    def __init__(self, address: S3Address, clock: Clock, limits: CallLimits | None = None) -> None:
        """Opens no connection. Raises `ConfigurationError`."""
        self._limits = limits or CallLimits()
        self._address = address
        self._clock = clock
        # Each call has its own limit; this one only ends abandoned requests.
        self._store = self._opened(2 * self._limits.call_s(LARGEST_BODY_BYTES))

    def _opened(self, timeout_s: float) -> S3Store:
        address = self._address
        try:
            return S3Store(
                address.bucket,
                prefix=address.prefix or None,
                config={
                    "endpoint": address.endpoint,
                    "aws_endpoint_url_s3": address.endpoint,
                    "region": address.region,
                    "skip_signature": False,
                    "unsigned_payload": False,
                    "virtual_hosted_style_request": False,
                    "disable_bulk_delete": True,
                },
                client_options={
                    "allow_http": address.allow_http,
                    "connect_timeout": timedelta(seconds=self._limits.small_s / 2),
                    "timeout": timedelta(seconds=timeout_s),
                    **({"root_certificate": address.ca.read_bytes()} if address.ca else {}),
                    **_no_detours(address.endpoint),
                },
                retry_config={"max_retries": 0},
                credential_provider=self._keys,
            )
        except (BaseError, ValueError, OSError) as error:
            raise ConfigurationError(
                f"The object store can't be used: {_first_line(error)}",
                hint="Correct the section objects of the configuration.",
            ) from error

    async def put_new(self, key: str, body: bytes) -> bool:
        """Write if the key does not exist; False if it does."""
        check_key(key)
        sent = False

        async def put() -> bool:
            nonlocal sent
            sent_before, sent = sent, True
            try:
                await obstore.put_async(self._store, key, body, mode="create", use_multipart=False)
            except AlreadyExistsError as taken:
                try:
                    size = await self._size(key)
                    if not sent_before or size != len(body):
                        return False
                    return await self._bytes(key, {}) == body
                except NoObject:
                    # obstore raises the same for 409: of two concurrent writers neither may have
                    # won.
                    raise _Again from taken
            return True

        return await self._call(put, 2 * len(body))

    async def put(self, key: str, body: bytes) -> None:
        """Write unconditionally."""
        check_key(key)

        async def put() -> None:
            await obstore.put_async(self._store, key, body, use_multipart=False)

        await self._call(put, len(body))

    async def read(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """The bytes from `begin` up to `end`; fewer if the object ends before."""
        check_key(key)
        if end is not None and end <= begin:
            await self._call(lambda: self._size(key))
            return b""
        wanted: GetOptions = {}
        if end is not None:
            wanted = {"range": (begin, end)}
        elif begin:
            wanted = {"range": {"offset": begin}}

        async def read() -> bytes:
            try:
                return await self._bytes(key, wanted)
            except BaseError:
                # obstore has no class for 416: the object ends at or before `begin`.
                if wanted and await self._size(key) <= begin:
                    return b""
                raise

        expected = LARGEST_BODY_BYTES if end is None else end - begin
        return await self._call(read, min(expected, LARGEST_BODY_BYTES))

    async def read_end(self, key: str, most_bytes: int) -> tuple[bytes, int]:
        """The last bytes of an object, and its whole size."""
        check_key(key)

        async def read() -> tuple[bytes, int]:
            if most_bytes <= 0:
                return b"", await self._size(key)
            try:
                result = await self._get(key, {"range": {"suffix": most_bytes}})
            except BaseError:
                # 416 again: an empty object has no last bytes.
                if await self._size(key) == 0:
                    return b"", 0
                raise
            return bytes(await result.bytes_async()), result.meta["size"]

        return await self._call(read, min(max(0, most_bytes), LARGEST_BODY_BYTES))

    async def listing(self, prefix: str, *, after: str = "") -> AsyncIterator[ObjectInfo]:
        """Keys that begin with `prefix` and sort after `after`, in order."""
        check_prefix(prefix)
        check_prefix(after)
        async for each in in_key_order(self, prefix, after):
            yield each

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """The prefixes one level below."""
        check_prefix(prefix)
        return (await self.level(prefix)).folders

    async def delete(self, key: str) -> None:
        """Remove it; a missing key is no error."""
        check_key(key)

        async def delete() -> None:
            try:
                await obstore.delete_async(self._store, key)
            except FileNotFoundError as absent:
                _refuse_no_bucket(absent)

        await self._call(delete)

    async def everything(self, folder: str, start: str) -> list[ObjectInfo] | None:
        """Every object below a folder in the store's own order; None if there are too many."""

        async def gather() -> list[ObjectInfo] | None:
            found: list[ObjectInfo] = []
            pages = _Pages(
                obstore.list(self._store, folder or None, offset=start or None, chunk_size=1000)
            )
            while page := await pages.next():
                found += map(_info, page)
                if len(found) > _MOST_AT_ONCE:
                    return None
            return found

        return await self._call(gather, _MOST_AT_ONCE * _LISTED_BYTES)

    async def level(self, folder: str) -> OrderLevel:
        """The direct entries of a folder."""

        async def list_level() -> OrderLevel:
            found = await obstore.list_with_delimiter_async(self._store, folder or None)
            folders = sorted(f"{each}/" for each in found["common_prefixes"])
            return OrderLevel(tuple(map(_info, found["objects"])), tuple(folders))

        return await self._call(list_level, LARGEST_BODY_BYTES)

    async def _get(self, key: str, options: GetOptions) -> GetResult:
        try:
            return await obstore.get_async(self._store, key, options=options)
        except FileNotFoundError as absent:
            _refuse_no_bucket(absent)
            raise NoObject(key) from None

    async def _bytes(self, key: str, options: GetOptions) -> bytes:
        return bytes(await (await self._get(key, options)).bytes_async())

    async def _size(self, key: str) -> int:
        try:
            return (await obstore.head_async(self._store, key))["size"]
        except FileNotFoundError:
            raise NoObject(key) from None

    async def _call(self, act: Callable[[], Awaitable[T]], body_bytes: int = 0) -> T:
        """Try, and retry where that may help, until the call's time is over."""
        limits = self._limits
        call_s = limits.call_s(body_bytes)
        fault: Exception = TimeoutError()
        try:
            async with asyncio.timeout(call_s):
                for number in range(limits.tries):
                    if number:
                        await asyncio.sleep(limits.first_pause_s * 2 ** (number - 1))
                    try:
                        async with asyncio.timeout(call_s * limits.try_share):
                            return await act()
                    except (PermissionDeniedError, UnauthenticatedError):
                        raise
                    except (BaseError, OSError, _Again) as failed:  # TimeoutError is an OSError
                        fault = failed
        except TimeoutError as late:
            fault = late
        except BaseError as refused:
            fault = refused
        raise self._unavailable(fault, call_s) from fault

    def _unavailable(self, fault: Exception, call_s: float) -> Unavailable:
        status = _STATUS.search(_first_line(fault))
        hint = "The store may be overloaded or restarting; it is asked again with the next call."
        if isinstance(fault, UnauthenticatedError):
            problem = "does not know the key it is asked with"
            hint = "Check objects.access_key_file and objects.secret_key_file."
        elif isinstance(fault, PermissionDeniedError):
            problem = f"refused what was asked of the bucket {self._address.bucket}"
            hint = "Give the key the rights that docs/operate/objects.md lists."
        elif isinstance(fault, FileNotFoundError):
            problem = f"has no bucket {self._address.bucket}"
            hint = "Make the bucket, or correct objects.url."
        elif isinstance(fault, TimeoutError):
            problem = f"did not answer within {call_s:.0f} s"
        elif f"{urlsplit(_NOBODY).netloc}," in str(fault) or "redirect without" in str(fault):
            problem = "redirects callers, which is not followed"
            hint = "Set objects.endpoint and objects.region to those of the bucket."
        elif status:
            problem = f"answered {status[1].strip()}"
        else:
            problem = "can't be reached, or broke off"
            hint = "Check that the server reaches objects.endpoint."
        return Unavailable(f"The object store {problem}.", hint=hint)

    def _keys(self) -> S3Credential:
        return {
            "access_key_id": _secret(self._address.access_key_file),
            "secret_access_key": _secret(self._address.secret_key_file),
            "token": None,
            "expires_at": self._clock.now() + _KEYS_LIVE,
        }


def _no_detours(endpoint: str) -> ClientConfig:
    """Block redirects to all hosts except the store's and its subdomains.

    If the environment has a proxy for the store, that proxy decides which hosts the server reaches.
    """
    url = urlsplit(endpoint)
    proxies = getproxies()
    if (url.scheme in proxies or "all" in proxies) and not proxy_bypass(url.netloc):
        return {}
    return {"proxy_url": _NOBODY, "proxy_excludes": url.hostname or ""}


class _Pages:
    """The pages of a listing, one request each. A request may be cancelled while it waits.

    obstore's stream owns its request. Dropping the stream last also drops the request, and outside
    the client's runtime that is a panic. So Python drops the stream first and then cancels the
    request, which the runtime drops.
    """

    def __init__(self, stream: ListStream[Sequence[ObjectMeta]]) -> None:
        self._stream: ListStream[Sequence[ObjectMeta]] | None = stream

    async def next(self) -> Sequence[ObjectMeta]:
        """The next page; an empty one at the end."""
        if self._stream is None:
            return ()
        page = asyncio.ensure_future(self._stream.__anext__())
        try:
            return await asyncio.shield(page)
        except StopAsyncIteration:
            self._stream = None
            return ()
        except asyncio.CancelledError:
            self._stream = None
            page.cancel()
            raise


class _Again(Exception):
    """The store requires another try."""


def _refuse_no_bucket(absent: FileNotFoundError) -> None:
    """404 may also mean a missing bucket; then nothing is known about the object."""
    if "NoSuchBucket" in str(absent):
        raise absent


def _info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], meta["last_modified"])


def _secret(file: Path) -> str:
    text = file.read_text(encoding="utf-8").strip()
    if not text:
        raise ValueError(f"{file} is empty")
    return text


def _first_line(error: Exception) -> str:
    """Only the first line: obstore's messages are pages long."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
