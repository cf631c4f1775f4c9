"""`python -m lattice_run event TEXT [--name NAME] [NAME=VALUE …]`, for scripts of jobs.

It ends with 0 also if the event was not taken: a script must not end because of its timeline.
"""

from __future__ import annotations

import sys

from lattice_run.event import event

_USAGE = "usage: python -m lattice_run event TEXT [--name NAME] [NAME=VALUE ...]"


def main(argv: list[str]) -> int:
    """Report one event; say on standard error why it was not taken."""
    rest = argv[2:]
    name = ""
    if rest[:1] == ["--name"]:
        name, rest = "".join(rest[1:2]), rest[2:]
    pairs = [each.partition("=") for each in rest]
    is_known = argv[:1] == ["event"] and len(argv) > 1
    if not is_known or not all(key and equals for key, equals, _ in pairs):
        sys.stderr.write(f"{_USAGE}\n")
        return 2
    reason = event(argv[1], name, **{key: value for key, _, value in pairs})
    if reason:
        sys.stderr.write(f"lattice_run: {reason}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
