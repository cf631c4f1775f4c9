"""The same commands in click's form: for help, mistakes, completion and unusual argument lists.

`lattice completion` is here too, because click writes its script.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class

import lattice
from lattice.base.command import COMMON, Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.fast_start.argv import separator, split
from lattice.cli.candidates import candidates
from lattice.cli.catalogue import COMPLETE_VARIABLE, GROUPS, commands_of, root_help
from lattice.cli.run import load, report, run

_SHELLS = ("bash", "zsh", "fish")
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 88}


class _Group(click.Group):
    """Commands from the catalogue, each loaded on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for name, _ in self.listed()]

    def listed(self) -> list[tuple[str, str]]:
        """Names and summaries, without loading anything."""
        return [(name, summary) for name, summary, _ in commands_of(self.name or "")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, _, location in commands_of(self.name or ""):
            if name == cmd_name:
                return as_click(load(location), ctx.find_root().obj or {}, name)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            path = ctx.command_path
            near = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            hint = f"Did you mean `{path} {near[0]}`?" if near else f"`{path} --help` lists them."
            raise _Mistake(UsageError(f"There is no command {name!r}.", hint=hint), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(self.listed())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # Names and summaries come from the catalogue; click's own way would load every feature.
        named = [
            CompletionItem(name, help=summary)
            for name, summary in self.listed()
            if name.startswith(incomplete)
        ]
        return named or super(click.Group, self).shell_complete(ctx, incomplete)


class _Root(_Group):
    """The commands of one word, and the groups."""

    def listed(self) -> list[tuple[str, str]]:
        return [(name, summary) for name, summary, _ in commands_of("")] + list(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for name, summary in GROUPS:
            if name == cmd_name:
                text = summary.partition(";")[0] + "."
                return _Group(name, help=text, context_settings=dict(_CONTEXT))
        for name, _, location in commands_of(""):
            if name == cmd_name:
                return as_click(load(location), ctx.obj or {})
        return None

    def get_help(self, ctx: click.Context) -> str:  # noqa: ARG002
        return root_help().rstrip("\n")


class _Text(click.ParamType[object]):
    """A value parsed by the option's own function; its error becomes click's."""

    name = "text"

    def __init__(self, option: Option) -> None:
        self._option = option

    def convert(
        self,
        value: object,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,
    ) -> object:
        if not isinstance(value, str) or self._option.read is None:
            return value
        try:
            return self._option.read(value)
        except UsageError as error:
            raise _Mistake(error, ctx) from None


class _Mistake(click.UsageError):
    """A usage error with its own hint."""

    def __init__(self, error: UsageError, ctx: click.Context | None) -> None:
        super().__init__(error.message, ctx)
        self.hint = error.hint


class _Command(click.Command):
    """A command with examples, permission and common options as separate parts of its help."""

    def __init__(
        self,
        command: Command,
        params: Sequence[click.Parameter],
        environment: Mapping[str, str],
        name: str = "",
    ) -> None:
        super().__init__(
            name or command.name,
            params=list(params),
            help=command.text,
            short_help=command.summary,
            callback=lambda **values: run(command, values, environment),
            context_settings={**_CONTEXT, "allow_interspersed_args": not command.passes_on},
        )
        self.command = command

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        behind = [
            f"[-- {each.name.upper()}...]"
            for each in self.command.params
            if isinstance(each, Argument) and each.behind
        ]
        return super().collect_usage_pieces(ctx) + behind

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args, behind = split(self.command, args)
        ctx.params.update(behind)
        if self.command.passes_on:
            # click drops the `--`, and with it the difference between a script and a command.
            at = separator(self.command, args)
            args = [*args[:at], "--", *args[at:]] if at is not None else args
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        names = {option.name for option in COMMON}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                (common if param.name in names else own).append(record)
        for title, records in (("Options", own), ("Common options", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        if self.command.examples:
            with formatter.section("Examples"):
                formatter.write_dl(list(self.command.examples))
        with formatter.section("Permission"):
            formatter.write_text(self.command.permission)


def as_click(
    command: Command, environment: Mapping[str, str] | None = None, name: str = ""
) -> click.Command:
    """A declaration as click's object; `name` is its last word, in a group."""
    params: list[click.Parameter] = [
        _argument(param) if isinstance(param, Argument) else _option(param)
        for param in command.params
        if not (isinstance(param, Argument) and param.behind)
    ]
    taken = {flag for param in command.params if isinstance(param, Option) for flag in param.flags}
    own = {param.name for param in command.params}
    params += [_option(option, taken) for option in COMMON if option.name not in own]
    return _Command(command, params, environment or {}, name)


def _argument(argument: Argument) -> click.Argument:
    return click.Argument(
        [argument.name],
        required=argument.required,
        nargs=-1 if argument.repeat else 1,
        type=click.Choice(argument.choices) if argument.choices else None,
        shell_complete=_completer(argument.complete),
    )


def _option(option: Option, taken: Collection[str] = ()) -> click.Option:
    kind: click.ParamType[object] | None = None
    if option.choices:
        kind = click.Choice(option.choices)
    elif option.read is not None:
        kind = _Text(option)
    return click.Option(
        [*(flag for flag in option.flags if flag not in taken), option.name],
        # With False, click would take a dashed word for the next option.
        is_flag=None if option.dashed else option.switch,
        multiple=option.repeat,
        metavar=option.metavar or None,
        type=kind if not option.switch else None,
        help=option.help,
        shell_complete=_completer(option.complete),
    )


_Complete: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(kind: str) -> _Complete | None:
    """Live values for one parameter; None if it has no kind."""
    if not kind:
        return None

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [
            CompletionItem(value, help=text)
            for value, text in candidates(kind, ctx.find_root().obj or {}, dict(ctx.params))
            if value.startswith(incomplete)
        ]

    return complete


def root(environment: Mapping[str, str]) -> click.Group:
    """The whole tree."""
    group = _Root("lattice", context_settings={**_CONTEXT, "obj": environment})
    return click.version_option(lattice.__version__, message="lattice %(version)s")(group)


def completion(*, shell: str) -> int:
    """Print the script that a shell reads at its start."""
    sys.stdout.write(completion_script(shell))
    return 0


def completion_script(shell: str) -> str:
    """The script of one shell, as packages bring it too."""
    kind = get_completion_class(shell)
    assert kind is not None
    return kind(root({}), {}, "lattice", COMPLETE_VARIABLE).source() + "\n"


COMPLETION = Command(
    "completion",
    summary="Completion for your shell",
    text="Prints a script that teaches your shell to complete commands, options, and the ids and "
    "nodes that exist just now.",
    run=completion,
    params=(Argument("shell", choices=_SHELLS),),
    examples=(
        ('eval "$(lattice completion bash)"', "in ~/.bashrc"),
        ('eval "$(lattice completion zsh)"', "in ~/.zshrc"),
        ("lattice completion fish | source", "in ~/.config/fish/config.fish"),
    ),
    permission="none",
    offline=True,
)


def run_by_click(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Let click parse the list, and run the command. Returns the exit code."""
    try:
        code = root(environment).main(list(arguments), prog_name="lattice", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        return 128 + 2
    except click.UsageError as error:
        return report(_as_ours(error))
    return code if isinstance(code, int) else 0


def _as_ours(error: click.UsageError) -> UsageError:
    path = error.ctx.command_path if error.ctx else "lattice"
    hint = getattr(error, "hint", None) or f"`{path} --help` explains it."
    return UsageError(error.format_message(), hint=hint)
