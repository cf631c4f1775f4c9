"""`lattice completion`: the script that adds completion to a shell."""

from __future__ import annotations

import sys

from lattice.base.command import Argument, Command
from lattice.cli.catalogue import COMPLETE_VARIABLE

_SHELLS = ("bash", "zsh", "fish")


def completion(*, shell: str) -> int:
    """Print the script that a shell reads at its start."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - click is slow

    from lattice.cli.tree import root  # noqa: PLC0415 - as it loads click

    kind = get_completion_class(shell)
    assert kind is not None
    sys.stdout.write(kind(root({}), {}, "lattice", COMPLETE_VARIABLE).source() + "\n")
    return 0


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
