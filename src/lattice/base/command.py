"""A command of the `lattice` program, declared as data: its options, its texts, its function.

Features declare their commands in this form. The shell derives two parsers from a declaration. One
is click's tree, for help, errors and completion. The other is a small direct parser for the usual
case, because importing click takes longer than the rest of a short command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class Option:
    """`--name VALUE`, or a switch. `read` converts the text and raises `UsageError`.

    The value of a `dashed` option may begin with a dash.
    """

    def __init__(
        self,
        *flags: str,
        help: str,  # noqa: A002 - the word it is called in every command line
        metavar: str = "",
        choices: tuple[str, ...] = (),
        read: Callable[[str], object] | None = None,
        repeat: bool = False,
        complete: str = "",
        dashed: bool = False,
    ) -> None:
        self.flags = flags
        self.dashed = dashed
        self.name = max(flags, key=len).lstrip("-").replace("-", "_")
        self.help = help
        self.metavar = metavar
        self.choices = choices
        self.read = read
        self.repeat = repeat
        self.complete = complete
        self.switch = not metavar and not choices


class Argument(NamedTuple):
    """A word without a dash. Only the last argument of a command may repeat.

    An argument that is `behind` takes all words after a `--`, and no others.
    """

    name: str
    required: bool = True
    repeat: bool = False
    choices: tuple[str, ...] = ()
    complete: str = ""
    behind: bool = False


class Command(NamedTuple):
    """One verb. `run(shell, **values)` carries it out and returns the exit code.

    An `offline` command needs no server and no configuration: `run(**values)`. In a command that
    `passes_on`, options end at the first word without a dash or at `--`. That word and all that
    follow belong to the program to be run. A `serverless` command also works with `--local`. One
    that works `alone` never asks a server, and none need be known.
    """

    name: str
    summary: str
    text: str
    run: Callable[..., int]
    params: tuple[Option | Argument, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    permission: str = "none"
    offline: bool = False
    passes_on: bool = False
    serverless: bool = False
    alone: bool = False


FORMATS = ("table", "wide", "json", "yaml")

COMMON: tuple[Option, ...] = (
    Option("-o", "--output", choices=FORMATS, help="How to show it; table unless configured."),
    Option("--utc", help="Tell times in UTC instead of local time."),
    Option("--no-color", help="No colours, as with NO_COLOR set."),
    Option("-q", "--quiet", help="Nothing but the data; errors still show."),
    Option("-v", "--verbose", help="Say which server answers, and the request's id with an error."),
    Option("--api-url", metavar="URL", help="The server; several replicas with commas between."),
    Option("--ca", metavar="FILE", help="Trust these certificates instead of the system's."),
    Option("--local", help="Ask no server: Slurm's commands, with your own rights."),
)
"""Options that every command takes."""
