"""Command lines that people write as one word."""

from __future__ import annotations

import shlex

from lattice.base.errors import UsageError


def shell_words(text: str) -> tuple[str, ...]:
    """Words as a shell would split them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text!r} can't be split into words: {error}") from None
