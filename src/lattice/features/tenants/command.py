"""`lattice admin tenant create|list|update|show`."""

from __future__ import annotations

from collections.abc import Mapping

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.domain.tenants import MOST, NO_LIMIT
from lattice.features.tenants import operations, render
from lattice.features.tenants.model import TenantCard, TenantList

_ACTS = ("create", "list", "update", "show")
_CHANGES = ("create", "update")


def read_limit(text: str) -> int:
    """Parse a number, or `none`. Raises `UsageError`."""
    if text == "none":
        return NO_LIMIT
    if text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and int(text) <= MOST:
        return int(text)
    raise UsageError(f"{text[:40]!r} is no limit.", hint="Write a number, or none.")


def tenant(shell: Shell, *, act: str, name: str | None, **limits: int | None) -> int:
    """Show tenants, make one, or change its limits."""
    _check(act, name, limits)
    if name is None:
        return _list(shell)
    if act == "show":
        return _show(shell, shell.call(operations.get_tenant(name)))
    if act == "create":
        made = shell.call(operations.create_tenant(name, **limits))
        _show(shell, made)
        shell.note(render.next_steps(made))
        return 0
    before = shell.call(operations.get_tenant(name)).tenant.limits
    changed = shell.call(operations.update_tenant(name, **limits))
    _show(shell, changed)
    shell.note(render.undo_text(name, before, changed.tenant.limits))
    return 0


def _check(act: str, name: str | None, limits: Mapping[str, int | None]) -> None:
    if act == "list" and name is not None:
        raise UsageError("list takes no name.", hint=f"lattice admin tenant show {name}")
    if act != "list" and name is None:
        raise UsageError(f"{act} needs a name.", hint=f"lattice admin tenant {act} NAME")
    given = any(each is not None for each in limits.values())
    if act not in _CHANGES and given:
        raise UsageError("Limits go with create and update.", hint="Leave them out.")
    if act == "update" and not given:
        raise UsageError("No limit is given.", hint="--max-nodes N, --max-gpus N or --max-jobs N.")


def _list(shell: Shell) -> int:
    answer = shell.call(operations.list_tenants())
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    elif answer.tenants:
        shell.write(render.tenant_table(answer.tenants, shell.style))
    else:
        shell.note("You govern no tenant, or Slurm has none.")
    _warn(shell, answer)
    return 0


def _show(shell: Shell, answer: TenantCard) -> int:
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(render.card(answer, shell.style))
    _warn(shell, answer)
    return 0


def _warn(shell: Shell, answer: TenantList | TenantCard) -> None:
    for line in render.warnings(answer, shell.style, shell.clock.now()):
        shell.warn(line)


def _limit(name: str, what: str) -> Option:
    return Option(name, metavar="N", read=read_limit, help=f"{what} at once; none: no limit.")


TENANT = Command(
    "admin tenant",
    summary="Tenants: make, list, limit and show them",
    text="A tenant is a top account in Slurm. Slurm has its limits and enforces them: work above "
    "a limit waits, with Slurm's reason. `show` has its projects and users, and what is in use "
    "now.\n\nUsers and projects are added with Slurm's own sacctmgr.",
    run=tenant,
    params=(
        Argument("act", choices=_ACTS),
        Argument("name", required=False),
        _limit("--max-nodes", "Nodes of all its jobs"),
        _limit("--max-gpus", "GPUs of all its jobs"),
        _limit("--max-jobs", "Running jobs"),
    ),
    examples=(
        ("lattice admin tenant list", "every tenant, its limits and what is in use"),
        ("lattice admin tenant create physics --max-nodes 40", "a new one"),
        ("lattice admin tenant update physics --max-nodes 60 --max-jobs none", "other limits"),
        ("lattice admin tenant show physics", "one in full"),
    ),
    permission="SystemAdmin; TenantAdmin may list and show the own tenant",
)
