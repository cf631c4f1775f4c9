"""JSON that nests deeper than Python can read it."""

from __future__ import annotations

import sys

DEPTH = 5_000 if sys.version_info < (3, 14) else 2_000_000
"""From 3.14 on the size of the stack decides, not a number of levels."""
DEEP = b"[" * DEPTH + b"]" * DEPTH
