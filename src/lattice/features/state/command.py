"""`lattice admin quorum`, `backup`, `backups`, `verify` and `restore`."""

from __future__ import annotations

from lattice.base.command import Argument, Command
from lattice.base.shell import Shell
from lattice.base.text import inert
from lattice.features.state import operations


def quorum(shell: Shell) -> int:
    """Show the members; the exit code is 1 if they do not agree."""
    found = shell.call(operations.get_quorum())
    if shell.output in {"json", "yaml"}:
        shell.document(found)
    else:
        from lattice.features.state.render import quorum_page  # noqa: PLC0415

        shell.write(quorum_page(found, shell.style))
    return 0 if found.healthy else 1


def backup(shell: Shell) -> int:
    """Make one now."""
    made = shell.call(operations.create_backup())
    if shell.output in {"json", "yaml"}:
        shell.document(made)
        return 0
    from lattice.features.state.render import backup_line  # noqa: PLC0415

    shell.write(f"Backed up {backup_line(made)}\n")
    shell.note(f"`lattice admin verify {made.name}` reads it back.")
    return 0


def backups(shell: Shell) -> int:
    found = shell.call(operations.list_backups())
    if shell.output in {"json", "yaml"}:
        shell.document(found)
        return 0
    from lattice.features.state.render import backup_table  # noqa: PLC0415

    shell.write(backup_table(found, shell.style, shell.clock.now()))
    if not found.backups:
        shell.note("There is no backup. `lattice admin backup` makes one.")
    every = f"every {found.every_h:g} h, {found.keep} are kept" if found.every_h else "by hand only"
    shell.note(f"In {inert(found.location)}; {every}.")
    return 0


def verify(shell: Shell, *, name: str | None) -> int:
    """Check one; the exit code is 76 if it can't be restored."""
    found = shell.call(operations.verify_backup(name or ""))
    if shell.output in {"json", "yaml"}:
        shell.document(found)
    elif found.sound and found.backup is not None:
        from lattice.features.state.render import backup_line  # noqa: PLC0415

        sign = shell.style.glyph("✓", "+")
        shell.write(f"{sign} {backup_line(found.backup)}\n")
    else:
        sign = shell.style.glyph("✗", "x")
        shell.write(f"{sign} {inert(found.name)}: {inert(found.problem)}\n")
    return 0 if found.sound else _NOT_SOUND


def restore(shell: Shell, *, name: str | None) -> int:
    """Check one, and show how it is restored."""
    plan = shell.call(operations.restore_backup(name or ""))
    if shell.output in {"json", "yaml"}:
        shell.document(plan)
        return 0
    from lattice.features.state.render import plan_page  # noqa: PLC0415

    shell.write(plan_page(plan))
    return 0


_NOT_SOUND = 76
_NAME = Argument("name", required=False)
_PERMISSION = "SystemAdmin"

QUORUM = Command(
    "admin quorum",
    summary="The members that hold the agreed state, and whether they agree",
    text="Asks every member of etcd: leader, term, index, health and database size. With --single "
    "there is no quorum, and the answer says so.\n\n"
    "The exit code is 1 if the state can't be changed.",
    run=quorum,
    examples=(
        ("lattice admin quorum", "a line for each member"),
        ("lattice admin quorum -o json", "for a monitor"),
    ),
    permission="SystemAdmin or Operator",
)

BACKUP = Command(
    "admin backup",
    summary="Back the agreed state up now",
    text="Writes every key below /lattice/ at one revision to the place that the server's section "
    "`backup` names, with a signed manifest. Private keys and logs are not in it.",
    run=backup,
    examples=(("lattice admin backup", "prints the name of the backup"),),
    permission=_PERMISSION,
)

BACKUPS = Command(
    "admin backups",
    summary="The backups of the agreed state",
    text="A line for each complete backup, the newest first.",
    run=backups,
    examples=(("lattice admin backups", "names, times and sizes"),),
    permission=_PERMISSION,
)

VERIFY = Command(
    "admin verify",
    summary="Check that a backup can be restored",
    text="Reads all of it: signature, cluster, size and SHA-256 of every part, every record. Names "
    "the first thing that is wrong. Without a name it checks the newest backup.\n\n"
    "The exit code is 76 if the backup can't be restored.",
    run=verify,
    params=(_NAME,),
    examples=(("lattice admin verify", "the newest one"),),
    permission=_PERMISSION,
)

RESTORE = Command(
    "admin restore",
    summary="Check a backup and show how the state is restored from it",
    text="The server never writes over a state that exists. With etcd it names the steps for each "
    "member. With --single it restores the backup when it is restarted.\n\n"
    "If no server runs, use `lattice-server restore` on its machine.",
    run=restore,
    params=(_NAME,),
    examples=(("lattice admin restore", "from the newest backup"),),
    permission=_PERMISSION,
)
