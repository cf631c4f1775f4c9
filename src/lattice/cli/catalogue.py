"""The commands by name, and the root help made from them. Importing it loads no feature.

A line each: name, summary, where its declaration is. A test holds the summaries to the
declarations.
"""

from __future__ import annotations

COMPLETE_VARIABLE = "_LATTICE_COMPLETE"
"""Set by a shell that asks for completion."""

_IDENTITY = "lattice.features.identity.command"
_ALLOCATIONS = "lattice.features.allocations.command"

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("login", "Sign in", f"{_IDENTITY}:LOGIN"),
    ("logout", "Sign out: revoke and delete the tokens", f"{_IDENTITY}:LOGOUT"),
    ("whoami", "Who the server takes you for, and why", f"{_IDENTITY}:WHOAMI"),
    ("status", "Your allocations, or one in full", f"{_ALLOCATIONS}.status:STATUS"),
    ("history", "Finished and running allocations of any time", f"{_ALLOCATIONS}.history:HISTORY"),
    ("wait", "Wait until allocations have finished", f"{_ALLOCATIONS}.wait:WAIT"),
    ("nodes", "The cluster's nodes and how each is", "lattice.features.nodes.command:NODES"),
    ("completion", "Completion for your shell", "lattice.cli.completion:COMPLETION"),
)

_HEAD = """\
Usage: lattice COMMAND [OPTIONS] [ARGS]...

  See into your own jobs: what waits and why, what runs, what became of it.

Commands:
"""
_TAIL = """
Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

  Begin with `lattice login`, then `lattice status`.
  `lattice COMMAND --help` explains a command.
"""


def root_help() -> str:
    """What `lattice --help` prints."""
    width = max(len(name) for name, _, _ in COMMANDS)
    lines = [f"  {name.ljust(width)}  {summary}\n" for name, summary, _ in COMMANDS]
    return _HEAD + "".join(lines) + _TAIL
