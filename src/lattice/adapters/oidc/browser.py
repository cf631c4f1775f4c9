"""Opening a page in the person's browser, without waiting for it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping

_OPENERS = ("xdg-open", "gio open", "wslview", "open")


def open_page(url: str, environment: Mapping[str, str]) -> bool:
    """True if a browser was started. `$BROWSER` comes first: commands, with colons between."""
    named = [entry for entry in environment.get("BROWSER", "").split(":") if entry.strip()]
    return any(_start(entry, url, environment) for entry in named or _OPENERS)


def _start(entry: str, url: str, environment: Mapping[str, str]) -> bool:
    words = shlex.split(entry)
    program = shutil.which(words[0], path=environment.get("PATH")) if words else None
    if program is None:
        return False
    if any("%s" in word for word in words):
        words = [word.replace("%s", url) for word in words]
    else:
        words.append(url)
    silence = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0o600) for stream in (0, 1, 2)]
    try:
        # A session of its own: Ctrl-C in the terminal is not meant for the browser.
        os.posix_spawn(program, words, environment, file_actions=silence, setsid=True)
    except OSError:
        return False
    return True
