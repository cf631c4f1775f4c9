"""A command of the `lattice` program, declared as data: its options, its texts, what it does.

Features declare their commands in this form; the shell makes of it what it needs: click's tree
for help, errors and completion, and a small direct reading of the argument list for the usual
case, because importing click costs more time than all else a short command does. Both come from
the same declaration, so they can't drift apart.
"""

from __future__ import annotations

from collections.abc import Callable


class Option:
    """`--name VALUE`, or a switch. `read` turns the text into a value, raising UsageError.

    The value of one that is `dashed` may itself begin with a dash.
    """

    __slots__ = (
        "choices",
        "complete",
        "dashed",
        "flags",
        "help",
        "metavar",
        "name",
        "read",
        "repeat",
        "switch",
    )

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


class Argument:
    """A word without a dash. At most one of a command may repeat, the last.

    One that stands `behind` takes all words after a `--`, whatever they look like, and no others.
    """

    __slots__ = ("behind", "choices", "complete", "name", "repeat", "required")

    def __init__(
        self,
        name: str,
        *,
        required: bool = True,
        repeat: bool = False,
        choices: tuple[str, ...] = (),
        complete: str = "",
        behind: bool = False,
    ) -> None:
        self.name = name
        self.behind = behind
        self.required = required
        self.repeat = repeat
        self.choices = choices
        self.complete = complete


class Command:
    """One verb. `run(shell, **values)` does it and returns the exit code.

    One that is `offline` needs no server and runs without a configuration: `run(**values)`.
    In one that `passes_on`, options end at the first word without a dash, or at `--`, which is
    then the first word itself: what follows belongs to the program that is to be run.
    """

    __slots__ = (
        "examples",
        "name",
        "offline",
        "params",
        "passes_on",
        "permission",
        "run",
        "summary",
        "text",
    )

    def __init__(  # noqa: PLR0913 - each is one thing a person reads or the shell must know
        self,
        name: str,
        *,
        summary: str,
        text: str,
        run: Callable[..., int],
        params: tuple[Option | Argument, ...] = (),
        examples: tuple[tuple[str, str], ...] = (),
        permission: str = "none",
        offline: bool = False,
        passes_on: bool = False,
    ) -> None:
        self.name = name
        self.passes_on = passes_on
        self.summary = summary
        self.text = text
        self.run = run
        self.params = params
        self.examples = examples
        self.permission = permission
        self.offline = offline


FORMATS = ("table", "wide", "json", "yaml")

COMMON: tuple[Option, ...] = (
    Option("-o", "--output", choices=FORMATS, help="How to show it; table unless configured."),
    Option("--utc", help="Tell times in UTC instead of local time."),
    Option("--no-color", help="No colours, as with NO_COLOR set."),
    Option("-q", "--quiet", help="Nothing but the data; errors still show."),
    Option("-v", "--verbose", help="Say which server answers, and the request's id with an error."),
    Option("--api-url", metavar="URL", help="The server; several replicas with commas between."),
    Option("--ca", metavar="FILE", help="Trust these certificates instead of the system's."),
)
"""What every command understands."""
