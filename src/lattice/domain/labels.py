"""What Lattice writes into Slurm's job comment: labels, and the mark of an idempotency key.

The form is `lattice:` and a compact JSON object. So everything about a job stays with the job:
`sacct` shows it, even after Lattice is removed. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.base.errors import UsageError

LONGEST_COMMENT = 1000
_PREFIX = "lattice:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_LONGEST_VALUE = 128


@dataclass(frozen=True, slots=True)
class Marks:
    """The content of a comment; empty for a job that Lattice did not mark."""

    labels: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    """The digest of the idempotency key of its submission."""


def check_labels(labels: Mapping[str, str]) -> None:
    """Raise `UsageError` for a label that can't be stored."""
    for name, value in labels.items():
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name[:60]!r} can't name a label.",
                hint="Letters, digits, '.', '_', '/' and '-', at most 63.",
            )
        if len(value) > _LONGEST_VALUE or not value.isprintable():
            raise UsageError(f"The label {name} has a value that is too long or not printable.")


def write_comment(marks: Marks) -> str:
    """The comment, empty if there are no marks. Raises `UsageError` if it is too long."""
    content: dict[str, object] = {}
    if marks.key:
        content["key"] = marks.key
    if marks.labels:
        content["labels"] = dict(marks.labels)
    if not content:
        return ""
    text = _PREFIX + json.dumps(content, sort_keys=True, separators=(",", ":"))
    if len(text) > LONGEST_COMMENT:
        raise UsageError("The labels are too long together.", hint="Use fewer or shorter ones.")
    return text


def read_comment(comment: str) -> Marks:
    """What Lattice wrote, or no marks: anyone may write anything into a comment."""
    if not comment.startswith(_PREFIX) or len(comment) > LONGEST_COMMENT:
        return Marks()
    try:
        content = json.loads(comment.removeprefix(_PREFIX))
    except (ValueError, RecursionError):
        return Marks()
    if not isinstance(content, dict):
        return Marks()
    key, labels = content.get("key"), content.get("labels")
    return Marks(
        {
            name: value
            for name, value in (labels.items() if isinstance(labels, dict) else ())
            if isinstance(value, str) and _NAME.fullmatch(name)
        },
        key if isinstance(key, str) else "",
    )
