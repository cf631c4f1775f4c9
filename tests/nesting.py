"""JSON that nests deeper than Python can read it."""

from __future__ import annotations

import sys

DEPTH = 5_000 if sys.version_info < (3, 12) else 2_000_000
"""Newer ones allow more levels in C, or all that the stack holds."""
DEEP = b"[" * DEPTH + b"]" * DEPTH
