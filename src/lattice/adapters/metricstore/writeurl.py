"""Checks the URL for writes; separate from the writer, which few agents load."""

from __future__ import annotations

from urllib.parse import urlsplit


class BadWriteUrl(ValueError):
    """Not a URL for writing samples; the text is the reason."""


def checked_write_url(text: str) -> str:
    """The complete URL for writes. Raises `BadWriteUrl`."""
    try:
        url = urlsplit(text)
        sound = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:
        sound = False
    if not sound or not text.isascii() or not text.isprintable() or " " in text or url.fragment:
        raise BadWriteUrl(f"{text[:80]!r} is no address, as http://127.0.0.1:8429/api/v1/write")
    if url.username is not None or url.password is not None:
        raise BadWriteUrl("a name and a password do not belong in an address")
    return text if url.path not in {"", "/"} else url._replace(path="/api/v1/write").geturl()
