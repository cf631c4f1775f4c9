"""One signed request to an S3 (AWS signature version 4), for administration of buckets."""

from __future__ import annotations

import hashlib
import hmac
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit

_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Whose request it is."""

    access: str
    secret: str


@dataclass(frozen=True, slots=True)
class S3Answer:
    """The status and the content, whatever they are."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def ask_s3(
    endpoint: str,
    keys: S3Keys,
    method: str,
    path: str,
    *,
    query: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> S3Answer:
    """Raises `OSError` if the store does not answer."""
    path = quote(path)
    words = "&".join(
        f"{quote(name, safe='')}={quote(value, safe='')}"
        for name, value in sorted((query or {}).items())
    )
    signed = _signed(keys, method, urlsplit(endpoint).netloc, path, words, headers or {}, body)
    target = f"{endpoint}{path}" + (f"?{words}" if words else "")
    request = urllib.request.Request(target, data=body or None, headers=signed, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return S3Answer(answer.status, answer.read(), dict(answer.headers))
    except urllib.error.HTTPError as refusal:
        with refusal:
            return S3Answer(refusal.code, refusal.read(), dict(refusal.headers))


def _signed(
    keys: S3Keys,
    method: str,
    host: str,
    path: str,
    query: str,
    headers: Mapping[str, str],
    body: bytes,
) -> dict[str, str]:
    at = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    named = {name.lower(): value for name, value in headers.items()}
    named |= {"host": host, "x-amz-content-sha256": digest, "x-amz-date": at}
    names = ";".join(sorted(named))
    lines = [f"{name}:{named[name]}" for name in sorted(named)]
    asked = "\n".join([method, path, query, *lines, "", names, digest])
    scope = f"{at[:8]}/{_REGION}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(asked.encode()).hexdigest()}"
    key = b"AWS4" + keys.secret.encode()
    for part in (*scope.split("/"), text):
        key = hmac.digest(key, part.encode(), "sha256")
    credential = f"Credential={keys.access}/{scope}"
    named["authorization"] = (
        f"AWS4-HMAC-SHA256 {credential}, SignedHeaders={names}, Signature={key.hex()}"
    )
    return named
