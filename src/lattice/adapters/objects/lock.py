"""`S3LockReader`: the port `LockReader`, by two requests that obstore has none for.

The store is asked for the bucket's configuration. The server's key may have no right to that. Then
the retention of an object there is read: the store shows it to whoever may read the object.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import httpx2

from lattice.adapters.objects.s3 import S3Address
from lattice.base.clock import Clock
from lattice.base.errors import Unavailable
from lattice.domain.object_lock import LockMode, ObjectLock
from lattice.domain.objects import ObjectStore

_CALL_S = 3.0
_LARGEST_BYTES = 64 * 1024
_NO_BODY = hashlib.sha256(b"").hexdigest()
_MODE = re.compile(rb"<Mode>\s*(COMPLIANCE|GOVERNANCE)\s*</Mode>")
_PERIOD = re.compile(rb"<(Days|Years)>\s*([0-9]{1,6})\s*</")
_DAYS = {b"Days": 1, b"Years": 365}


class S3LockReader:
    """Reads the lock of one bucket."""

    def __init__(
        self,
        address: S3Address,
        objects: ObjectStore,
        prefix: str,
        clock: Clock,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """`objects` is the bucket, and objects under `prefix` have its retention."""
        self._address = address
        self._objects = objects
        self._prefix = prefix
        self._clock = clock
        self._transport = transport

    @property
    def bucket(self) -> str:
        return self._address.bucket

    async def read(self) -> ObjectLock:
        """Raises `Unavailable`."""
        answer = await self._ask("GET", "", "object-lock=")
        if answer.status_code == httpx2.codes.OK:
            return lock_in(answer.content[:_LARGEST_BYTES])
        if b"ObjectLockConfigurationNotFound" in answer.content:
            return ObjectLock()
        if answer.status_code == httpx2.codes.FORBIDDEN:
            return await self._of_an_object()
        raise Unavailable(
            f"The object store answered {answer.status_code} when asked for the object lock.",
            hint=f"Check that the bucket {self.bucket} exists, and that the store has object lock.",
        )

    async def _of_an_object(self) -> ObjectLock:
        async for each in self._objects.listing(self._prefix):
            answer = await self._ask("HEAD", each.key, "")
            if answer.status_code == httpx2.codes.OK:
                return retention_in(answer.headers)
            break
        raise Unavailable(
            "The server's key may not read the object lock of the bucket, and no object shows it.",
            hint="Give it s3:GetBucketObjectLockConfiguration and s3:GetObjectRetention.",
        )

    async def _ask(self, method: str, key: str, query: str) -> httpx2.Response:
        address = self._address
        path = quote("/".join(filter(None, (urlsplit(address.endpoint).path, self.bucket, key))))
        path = "/" + path.lstrip("/")
        url = urlsplit(address.endpoint)
        # Another default than the system's authorities, and no settings of the environment.
        verify = ssl.create_default_context(cafile=str(address.ca) if address.ca else None)
        try:
            headers = self._signed(method, url.netloc, path, query)
            async with httpx2.AsyncClient(
                verify=verify, transport=self._transport, trust_env=False, timeout=_CALL_S
            ) as client:
                target = f"{url.scheme}://{url.netloc}{path}" + (f"?{query}" if query else "")
                return await client.request(method, target, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise Unavailable(
                f"The object store can't be asked for its object lock: {type(error).__name__}.",
                hint="Check that the server reaches objects.endpoint.",
            ) from None

    def _signed(self, method: str, host: str, path: str, query: str) -> dict[str, str]:
        """The headers of a request without a body, by AWS' signature version 4."""
        address, now = self._address, self._clock.now().astimezone(UTC)
        access_key = address.access_key_file.read_text(encoding="utf-8").strip()
        secret_key = address.secret_key_file.read_text(encoding="utf-8").strip()
        at = now.strftime("%Y%m%dT%H%M%SZ")
        headers = {"host": host, "x-amz-content-sha256": _NO_BODY, "x-amz-date": at}
        names = ";".join(headers)
        lines = [f"{name}:{value}" for name, value in headers.items()]
        request = "\n".join([method, path, query, *lines, "", names, _NO_BODY])
        scope = f"{at[:8]}/{address.region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
        key = b"AWS4" + secret_key.encode()
        for part in (*scope.split("/"), text):
            key = hmac.digest(key, part.encode(), "sha256")
        credential = f"Credential={access_key}/{scope}"
        del headers["host"]
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={key.hex()}"
        )
        return headers


def lock_in(configuration: bytes) -> ObjectLock:
    """The default retention in the configuration of a bucket."""
    mode, period = _MODE.search(configuration), _PERIOD.search(configuration)
    if b"<ObjectLockEnabled>Enabled<" not in configuration or mode is None or period is None:
        return ObjectLock()
    return ObjectLock(LockMode(mode[1].decode()), int(period[2]) * _DAYS[period[1]])


def retention_in(headers: Mapping[str, str]) -> ObjectLock:
    """The retention of an object, from when it was written on."""
    try:
        mode = LockMode(headers.get("x-amz-object-lock-mode", ""))
        until = datetime.fromisoformat(headers["x-amz-object-lock-retain-until-date"])
        written = parsedate_to_datetime(headers["last-modified"])
        return ObjectLock(mode, round((until - written).total_seconds() / 86_400, 1))
    except (KeyError, ValueError, TypeError):
        return ObjectLock()
