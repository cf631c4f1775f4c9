"""The commands of a group, and the root help made from them. Importing it loads no feature."""

from __future__ import annotations

from lattice.cli.command_table import COMMANDS

COMPLETE_VARIABLE = "_LATTICE_COMPLETE"
"""Set by a shell that requests completion."""

GROUPS: tuple[tuple[str, str], ...] = (
    ("admin", "Operate the cluster; `lattice admin --help` lists how"),
    ("bench", "Measure machines; `lattice bench --help` lists how"),
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


def commands_of(group: str) -> tuple[tuple[str, str, str], ...]:
    """The commands of a group by their second word; for an empty name those of the root."""
    if not group:
        return tuple(each for each in COMMANDS if " " not in each[0])
    named = f"{group} "
    return tuple(
        (name.removeprefix(named), summary, location)
        for name, summary, location in COMMANDS
        if name.startswith(named)
    )


def root_help() -> str:
    """The output of `lattice --help`."""
    lines = [(name, summary) for name, summary, _ in commands_of("")] + list(GROUPS)
    width = max(len(name) for name, _ in lines)
    return _HEAD + "".join(f"  {name.ljust(width)}  {text}\n" for name, text in lines) + _TAIL
