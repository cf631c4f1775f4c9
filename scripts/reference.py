"""Writes docs/reference/cli.md from the commands' own declarations; `just` and a test call it."""

from __future__ import annotations

from pathlib import Path

import click

from lattice.base.command import COMMON, Command, Option
from lattice.base.errors import STATUS
from lattice.cli.catalogue import root_help
from lattice.cli.command_table import COMMANDS
from lattice.cli.run import load
from lattice.cli.tree import as_click

TARGET = Path(__file__).resolve().parents[1] / "docs/reference/cli.md"

_HEAD = """\
# The command line

<!-- Written by scripts/reference.py from the commands themselves. Don't edit. -->

"""

_TAIL = """\
## Configuration

`~/.config/lattice/config.yaml` (or `$XDG_CONFIG_HOME/lattice/config.yaml`, or `$LATTICE_CONFIG`).
`/etc/lattice/config.yaml` has the same keys, for everybody on a machine. Flags stand over the
environment, the environment over your file, and your file over the site's, key by key.

| key | environment | flag | meaning |
|---|---|---|---|
| `api_url` | `LATTICE_API_URL` | `--api-url` | the server; several replicas with commas between |
| `local` | | `--local` | `true`: no server; [what works then](../guide/local.md) |
| `ca` | `LATTICE_CA` | `--ca` | trust these certificates instead of the system's |
| `client_cert`, `client_key` | | | a certificate to show to the server |
| `output` | | `--output` | `table`, `wide`, `json` or `yaml` |
| `color` | `NO_COLOR` | `--no-color` | `auto`, `always` or `never` |
| `scopes` | | `--scope` of `login` | further scopes to ask for when signing in |
| `credentials` | | | `file`, or `keyring` with the extra of that name |
| | `LATTICE_TOKEN` | | a token to use instead of a sign-in; never given as an option |

## Exit codes

| code | meaning |
|---|---|
"""

CODES = {
    0: "done",
    1: "an error of Lattice itself; `wait`: not finished in time",
    2: "the command makes no sense as given",
    4: "nobody is logged in",
    75: "the server or something it stands on does not answer; trying again may help",
    76: "the data does not exist",
    77: "not permitted",
    78: "bad configuration",
    79: "the job ended first",
    80: "too many requests",
    81: "somebody else has it, or it is in use",
    100: "`wait` and `logs` with `--exit-status`: one failed",
    101: "`wait` and `logs` with `--exit-status`: not finished",
    102: "not there, or not yours",
    103: "`wait` and `logs` with `--exit-status`: one was cancelled",
    110: "`diag --exit-status`: attention",
    111: "`diag --exit-status`: bad",
    112: "`diag --exit-status`: unknown",
    113: "`compare --fail-on`: a bound is broken, or nothing was measured for it",
    130: "interrupted by Ctrl-C",
    141: "the reader of a pipe has left",
}


def page() -> str:
    """The whole page."""
    missing = {status.exit for status in STATUS.values()} - set(CODES)
    if missing:
        raise SystemExit(f"exit codes without a meaning: {sorted(missing)}")
    parts = [_HEAD, "```\n", root_help(), "```\n\n"]
    parts += [_section(load(place)) for _, _, place in COMMANDS]
    parts += ["## Options of every command\n\n", _options(COMMON), _TAIL]
    parts += [f"| {code} | {meaning} |\n" for code, meaning in sorted(CODES.items())]
    return "".join(parts)


def _section(command: Command) -> str:
    made = as_click(command)
    usage = made.get_usage(click.Context(made, info_name=f"lattice {command.name}"))
    own = [param for param in command.params if isinstance(param, Option)]
    examples = "".join(f"| `{example}` | {text} |\n" for example, text in command.examples)
    parts = [
        f"## lattice {command.name}\n\n{command.summary}.\n\n",
        f"```\n{usage}\n```\n\n{command.text}\n\n",
        _options(tuple(own)) if own else "",
        f"| example | |\n|---|---|\n{examples}\n" if examples else "",
        f"Permission: {command.permission}.\n\n",
    ]
    return "".join(parts).replace("\n\n\n", "\n\n")


def _options(options: tuple[Option, ...]) -> str:
    lines = ["| option | |\n|---|---|\n"]
    for option in options:
        value = option.metavar or "\\|".join(option.choices)
        flags = ", ".join(f"`{flag}`" for flag in option.flags) + (f" {value}" if value else "")
        lines.append(f"| {flags} | {option.help} |\n")
    return "".join(lines) + "\n"


if __name__ == "__main__":
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(page())
