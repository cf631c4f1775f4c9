"""One run of one command: makes the shell, shows errors as one line and one hint."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module

from lattice.base.command import COMMON, Command
from lattice.base.errors import ConfigurationError, InternalError, LatticeError, status_of
from lattice.base.text import inert


def load(where: str) -> Command:
    """The declaration at `module:NAME`."""
    module, _, name = where.partition(":")
    command = getattr(import_module(module), name)
    assert isinstance(command, Command)
    return command


def run(command: Command, values: Mapping[str, object], environment: Mapping[str, str]) -> int:
    """Run it with the parsed values, including the common options. Returns the exit code."""
    common = {option.name: values.get(option.name) for option in COMMON}
    own = {name: value for name, value in values.items() if name not in common}
    verbose = bool(common["verbose"])
    try:
        _make_safe_to_write()
        if command.offline:
            return command.run(**own)
        from lattice.cli.shell import TerminalShell  # noqa: PLC0415 - not all need a server

        shell = TerminalShell({**common, "local": True} if command.alone else common, environment)
        shell.check_server(command)
        try:
            return command.run(shell, **own)
        finally:
            shell.close()
    except LatticeError as error:
        return report(error, verbose=verbose)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - a person gets a sentence, not a traceback
        return report(_defect(error), verbose=verbose)


def _defect(error: Exception) -> InternalError:
    from traceback import format_exception  # noqa: PLC0415 - this should never be needed

    found = InternalError(
        f"lattice failed: {type(error).__name__}: {error}",
        hint="This is a defect. Please report it with what `-v` adds to this message.",
    )
    for line in "".join(format_exception(error)).splitlines():
        found.add_note(line)
    return found


def _make_safe_to_write() -> None:
    # A terminal without UTF-8 gets `\u2713` for a tick instead of a traceback.
    for stream in (sys.stdout, sys.stderr):
        if (stream.encoding or "").lower() != "utf-8" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def report(error: LatticeError, *, verbose: bool = False) -> int:
    """Print the message and the hint, and return the exit code."""
    sys.stdout.flush()
    # Slurm's refusals have several lines; an indent keeps them from passing as something else.
    first, *more = error.message.split("\n")
    lines = [inert(first), *(f"  {inert(line)}" for line in more)]
    if isinstance(error, ConfigurationError):
        lines += [f"  {inert(problem)}" for problem in error.problems]
    if error.hint:
        lines.append(f"Hint: {inert(error.hint)}")
    if verbose:
        lines += [f"  {inert(note)}" for note in getattr(error, "__notes__", ())]
    sys.stderr.write("\n".join(lines) + "\n")
    return status_of(error).exit
