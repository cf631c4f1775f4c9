"""The pages of the manual and the completion, from the commands' own declarations.

PYTHONPATH=. python -m scripts.packaging.manual lattice-agent | man -l -
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib import import_module

import click

from lattice.base.command import COMMON, Command, Option
from lattice.cli.command_table import COMMANDS
from lattice.cli.run import load
from lattice.cli.tree import as_click, completion_script
from scripts.packaging.command import commit_time, version
from scripts.reference import CODES

_DAEMONS = {
    "lattice-server": "lattice.server.main:_parser",
    "lattice-agent": "lattice.agent.main:_parser",
    "lattice-helper": "lattice.helper.flags:helper_flags",
}
_FILES = {
    "lattice": (
        ("~/.config/lattice/config.yaml", "Your own configuration."),
        ("/etc/lattice/config.yaml", "The site's configuration. Yours stands over it."),
        ("~/.config/lattice/credentials", "Your tokens. Nobody else can read them."),
    ),
    "lattice-server": (
        ("/etc/lattice/server.yaml", "The configuration."),
        ("/etc/default/lattice-server", "OPTIONS= for the unit, and variables."),
        ("/usr/share/doc/lattice-server/examples", "Configurations to begin with."),
        ("/usr/share/lattice/grafana", "Dashboards for Grafana."),
        ("/usr/share/lattice/alerts", "Alert rules for Prometheus, with their tests."),
        ("/usr/share/lattice/deploy", "Scripts that set up etcd, nodes and images."),
        ("/usr/share/lattice/ansible", "An Ansible role."),
        ("/var/lib/lattice", "The server's own state."),
    ),
    "lattice-agent": (
        ("/etc/lattice/agent.yaml", "The configuration."),
        ("/etc/default/lattice-agent", "OPTIONS= for the unit, and variables."),
        ("/etc/lattice/join.key", "The line of `lattice admin enrol` for this node."),
        ("/usr/share/doc/lattice-agent/examples", "A configuration with every key."),
        ("/var/lib/lattice-agent", "The agent's certificate, and what waits to be stored."),
    ),
    "lattice-helper": (
        ("/etc/lattice/grant-keys", "Public keys of the servers."),
        ("/etc/default/lattice-helper", "OPTIONS= for the unit of a node."),
        ("/etc/default/lattice-gate", "OPTIONS= for the unit beside a server."),
        ("/run/lattice/helper.sock", "The socket beside an agent."),
        ("/run/lattice-gate/socket", "The socket beside a server."),
    ),
}
_VARIABLES = (
    ("LATTICE_API_URL", "The server; several replicas with commas between."),
    ("LATTICE_CA", "Trust these certificates instead of the system's."),
    ("LATTICE_CONFIG", "Your configuration, if it is in another file."),
    ("LATTICE_TOKEN", "A token to use instead of a sign-in."),
    ("NO_COLOR", "No colours."),
)

_ABOUT = """\
.SH DESCRIPTION
See into your own jobs: what waits and why, what runs, what became of it.
.PP
Begin with
.B lattice login
and then
.BR "lattice status" .
"""


def manual(name: str) -> str:
    """The page of a program, for man."""
    return _client() if name == "lattice" else _daemon(name)


def completion(shell: str) -> str:
    """What a shell reads to complete `lattice`."""
    return completion_script(shell)


def _client() -> str:
    page = [
        _head("lattice", 1, "see into your own jobs on a GPU or HPC cluster"),
        ".SH SYNOPSIS\n.B lattice\n.I COMMAND\n[\n.I OPTIONS\n] [\n.I ARGUMENTS\n]\n",
        _ABOUT,
        ".SH COMMANDS\n",
        *(_command(load(location)) for _, _, location in COMMANDS),
        ".SH OPTIONS OF EVERY COMMAND\n",
        *(_option(each) for each in COMMON),
        ".SH ENVIRONMENT\n",
        *(_item(each, text) for each, text in _VARIABLES),
        _files("lattice"),
        ".SH EXIT STATUS\n",
        *(_item(str(code), text) for code, text in sorted(CODES.items())),
    ]
    return "".join(page)


def _command(command: Command) -> str:
    made = as_click(command)
    usage = made.get_usage(click.Context(made, info_name=f"lattice {command.name}"))
    lines = [f".SS lattice {_text(command.name)}\n{_text(command.summary)}.\n"]
    lines.append(f".PP\n.nf\n{_text(usage.removeprefix('Usage: '))}\n.fi\n")
    lines += [f".PP\n{_text(each)}\n" for each in command.text.split("\n\n")]
    lines += [_option(each) for each in command.params if isinstance(each, Option)]
    if command.examples:
        lines.append(".PP\nExamples:\n")
        lines += [_item(example, text) for example, text in command.examples]
    return "".join(lines)


def _option(option: Option) -> str:
    value = option.metavar or "|".join(option.choices)
    return _item(", ".join(option.flags), option.help, value)


def _daemon(name: str) -> str:
    module, _, function = _DAEMONS[name].partition(":")
    parser = getattr(import_module(module), function)()
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    page = [
        _head(name, 8, (parser.description or name).partition(". ")[0].rstrip(".")),
        f".SH SYNOPSIS\n{_text(usage)}\n.SH DESCRIPTION\n{_text(parser.description or '')}\n",
        ".SH OPTIONS\n",
        *_arguments(parser),
        _files(name),
        ".SH EXIT STATUS\n",
        _item("0", "It was stopped."),
        _item("78", "The configuration is wrong. systemd does not start it again."),
        ".SH SEE ALSO\n",
        ", ".join(f".BR {each} (8)" for each in _DAEMONS if each != name).replace(", ", ",\n"),
        "\n",
    ]
    return "".join(page)


def _arguments(parser: argparse.ArgumentParser) -> list[str]:
    found = []
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            for name, inner in action.choices.items():
                found.append(f".SS {_text(name)}\n{_text(inner.description or '')}\n")
                found += _arguments(inner)
            continue
        value = str(action.metavar or "") or "|".join(str(each) for each in action.choices or ())
        if action.nargs != 0 and not value and action.option_strings:
            value = action.dest.upper()
        text = (action.help or "").replace("%(default)s", str(action.default))
        found.append(_item(", ".join(action.option_strings) or action.dest, text, value))
    return found


def _head(name: str, section: int, summary: str) -> str:
    date = time.strftime("%Y-%m-%d", time.gmtime(int(commit_time())))
    return (
        f'.TH {name.upper()} {section} "{date}" "Lattice {version()}"\n'
        f".SH NAME\n{name} \\- {_text(summary[0].lower() + summary[1:])}\n"
    )


def _files(name: str) -> str:
    return ".SH FILES\n" + "".join(_item(file, text) for file, text in _FILES[name])


def _item(term: str, text: str, value: str = "") -> str:
    shown = f"\\fB{_text(term)}\\fR" + (f" \\fI{_text(value)}\\fR" if value else "")
    return f".TP\n{shown}\n{_text(text)}\n"


def _text(text: str) -> str:
    """As roff reads it: no dash is broken, and no line is taken for a request."""
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(
        ("\\&" if each.startswith((".", "'")) else "") + each for each in safe.splitlines()
    )


if __name__ == "__main__":
    sys.stdout.write(manual(sys.argv[1]))
