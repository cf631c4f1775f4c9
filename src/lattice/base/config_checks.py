"""Checks of single configuration values: a file, certificates, a URL.

Each check reports its problems and returns; none raises.
"""

from __future__ import annotations

import os
import re
import ssl
import stat
from pathlib import Path
from urllib.parse import urlsplit

from lattice.base.address import Address
from lattice.base.config import ConfigReport

SHORTEST_SECRET_BYTES = 32
_UNFIT = re.compile(r"[^!-~]|\\")


def check_file(path: str, file: Path | None, report: ConfigReport, *, secret: bool = False) -> bool:
    """True if no file is named, or the file can be read. Warns if a secret is open to others."""
    if file is None:
        return True
    try:
        mode = file.stat().st_mode
    except OSError as error:
        report.problem(path, f"{file}: {error.strerror}")
        return False
    if not stat.S_ISREG(mode) or not os.access(file, os.R_OK):
        what = "can't be read by this user" if stat.S_ISREG(mode) else "is no regular file"
        report.problem(path, f"{file}: {what}")
        return False
    if secret and mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        report.warning(path, f"{file} is open to others (mode {stat.S_IMODE(mode):04o})")
    return True


def check_authority(path: str, file: Path | None, report: ConfigReport) -> None:
    """Check that TLS accepts the file as authorities, if one is named."""
    if file is None or not check_file(path, file, report):
        return
    try:
        ssl.create_default_context(cafile=file)
    except (ssl.SSLError, OSError):
        report.problem(path, f"{file} holds no certificates")


def check_url(
    path: str,
    text: str | None,
    report: ConfigReport,
    *,
    outside: tuple[str, ...],
    query: bool = False,
) -> None:
    """Plain `http` is always allowed to loopback; `outside` lists the schemes for other hosts."""
    if text is None:
        return
    fault = _url_fault(text, outside, query=query)
    if fault:
        report.problem(path, fault)


def is_plain_outside(text: str | None) -> bool:
    """True if traffic to this URL is not encrypted and leaves the machine."""
    try:
        url = urlsplit(text or "")
    except ValueError:
        return False
    return url.scheme == "http" and not Address(url.hostname or "", 1).is_loopback


def _url_fault(text: str, outside: tuple[str, ...], *, query: bool) -> str:
    try:
        url = urlsplit(text)
        sound = bool(url.hostname) and url.port != 0 and not _UNFIT.search(text)
    except ValueError:
        sound = False
    if not sound or url.scheme not in {"http", "https"}:
        return f"must be a URL that begins with {' or '.join(f'{each}://' for each in outside)}"
    if "@" in url.netloc:
        return "must not hold a user name or a password"
    if "#" in text or ("?" in text and not query):
        return "must hold neither query nor fragment"
    if url.scheme not in outside and not Address(url.hostname or "", 1).is_loopback:
        return "must be https:// (http:// is for loopback only)"
    return ""
