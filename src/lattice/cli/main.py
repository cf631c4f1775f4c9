"""The `lattice` program: from an argument list to an exit code.

Help and the usual commands run without click, which takes longer to import than they take to run.
Everything else, and every mistake, goes through click (`lattice.cli.tree`).
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence

from lattice.cli.catalogue import COMPLETE_VARIABLE, root_help
from lattice.cli.command_table import COMMANDS

_HELP: tuple[tuple[str, ...], ...] = ((), ("--help",), ("-h",))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; as the program itself, exit with it."""
    # A short process ends before collecting would pay; long-running commands enable it again.
    gc.disable()
    code = _guarded(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        # Everything is written. Tearing down the interpreter would take a tenth of the time of a
        # short command.
        os._exit(code)
    return code


def _guarded(arguments: Sequence[str]) -> int:
    try:
        code = _run(arguments, os.environ)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, which is no error.
        return 128 + 13
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            # The prompt belongs on its own line, not behind the ^C.
            sys.stderr.write("\n")
        return 128 + 2
    except SystemExit as end:
        sys.stdout.flush()
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return code


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    if COMPLETE_VARIABLE not in environment:
        if tuple(arguments) in _HELP:
            sys.stdout.write(root_help())
            return 0
        if arguments and arguments[0].startswith("-"):
            arguments = _command_first(arguments)
        where, rest = _found(arguments)
        if where is not None:
            from lattice.base.fast_start import argv  # noqa: PLC0415
            from lattice.cli.run import load, run  # noqa: PLC0415 - not needed for help

            command = load(where)
            values = argv.read(command, rest)
            if values is not None:
                return run(command, values, environment)
    from lattice.cli.tree import run_by_click  # noqa: PLC0415 - see the module's docstring

    return run_by_click(arguments, environment)


def _command_first(arguments: Sequence[str]) -> Sequence[str]:
    """The same with common options behind the command; unchanged if it begins with others."""
    from lattice.base.command import COMMON  # noqa: PLC0415 - not needed for help

    by_flag = {flag: option for option in COMMON for flag in option.flags}
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        flag, equals, _ = arguments[at].partition("=")
        option = by_flag.get(flag)
        if option is None:
            return arguments
        at += 1 if option.switch or equals else 2
    where, rest = _found(arguments[at:])
    if where is None:
        return arguments
    command = arguments[at : len(arguments) - len(rest)]
    return [*command, *arguments[:at], *rest]


def _found(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    for name, _, location in COMMANDS:
        path = name.split(" ")
        if list(arguments[: len(path)]) == path:
            return location, arguments[len(path) :]
    return None, arguments


if __name__ == "__main__":
    sys.exit(main())
