"""The commands by name, and the root help made from them. Importing it loads no feature.

A line each: name, summary, where its declaration is. A test holds the summaries to the
declarations.
"""

from __future__ import annotations

COMPLETE_VARIABLE = "_LATTICE_COMPLETE"
"""Set by a shell that asks for completion."""

_IDENTITY = "lattice.features.identity.command"
_ALLOCATIONS = "lattice.features.allocations.command"
_SUBMIT = "lattice.features.submit.command"
_LOGS = "lattice.features.logs.command"
_SHARING = "lattice.features.sharing.command"
_ATTACH = "lattice.features.attach.command"
_REPORT = "lattice.features.report.command"
_WATCH = "lattice.features.watch.command"
_NODES = "lattice.features.nodes.command"
_AGENTS = "lattice.features.agents.command"
_TELEMETRY = "lattice.features.telemetry.command"
_LINK = "lattice.features.link.command"
_LOCKS = "lattice.features.locks.command"
_TOP = "lattice.features.top.command"
_COMPARE = "lattice.features.compare.command"
_DIAG = "lattice.features.diag.command"

COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("login", "Sign in", f"{_IDENTITY}:LOGIN"),
    ("logout", "Sign out: revoke and delete the tokens", f"{_IDENTITY}:LOGOUT"),
    ("whoami", "Who the server takes you for, and why", f"{_IDENTITY}:WHOAMI"),
    ("status", "Your allocations, or one in full", f"{_ALLOCATIONS}.status:STATUS"),
    ("history", "Finished and running allocations of any time", f"{_ALLOCATIONS}.history:HISTORY"),
    ("submit", "Submit a script or a command", f"{_SUBMIT}.submit:SUBMIT"),
    ("cancel", "Cancel allocations", f"{_SUBMIT}.cancel:CANCEL"),
    ("wait", "Wait until allocations have finished", f"{_ALLOCATIONS}.wait:WAIT"),
    ("logs", "What a job writes, live and afterwards", f"{_LOGS}.logs:LOGS"),
    (
        "watch",
        "How a job is, as it happens: figures, alerts, lost nodes",
        f"{_WATCH}.watch:WATCH",
    ),
    ("attach", "A terminal inside a running job", f"{_ATTACH}.attach:ATTACH"),
    ("session", "An allocation with a terminal in it", f"{_ATTACH}.session:SESSION"),
    ("sessions", "Your attached terminals, open and past", f"{_ATTACH}.sessions:SESSIONS"),
    (
        "top",
        "What a job uses: processors, memory, GPUs, network, storage",
        f"{_TOP}.top:TOP",
    ),
    (
        "report",
        "What a job asked for, what it used, and what to change",
        f"{_REPORT}:REPORT",
    ),
    ("diag", "What is sick about a job, how we know, and what to do", f"{_DIAG}:DIAG"),
    ("compare", "What differs between runs, and how sure that is", f"{_COMPARE}.compare:COMPARE"),
    ("telemetry", "How closely a job is measured, and switching that", f"{_TELEMETRY}:TELEMETRY"),
    ("share", "Let others read a job's output, and see who did", f"{_SHARING}:SHARE"),
    ("unshare", "Let a user read a job's output no longer", f"{_SHARING}:UNSHARE"),
    ("nodes", "The cluster's nodes and how each is", f"{_NODES}.listing:NODES"),
    ("completion", "Completion for your shell", "lattice.cli.completion:COMPLETION"),
    ("admin drain", "Let nodes end their work and take no more", f"{_NODES}.admin:DRAIN"),
    ("admin undrain", "Put drained nodes back into service", f"{_NODES}.admin:UNDRAIN"),
    ("admin disable", "Take nodes out of service at once", f"{_NODES}.admin:DISABLE"),
    ("admin enable", "Put disabled nodes back into service", f"{_NODES}.admin:ENABLE"),
    ("admin agents", "Every node's agent: its link, certificate and trust", f"{_AGENTS}:AGENTS"),
    ("admin ping", "Measure the way to a node's agent", f"{_LINK}:PING"),
    ("admin enrol", "Make a one-time token with which a node enrols", f"{_AGENTS}:ENROL"),
    ("admin revoke", "Refuse every certificate a node has now", f"{_AGENTS}:REVOKE"),
    ("admin restore", "Take back a node's revocation or quarantine", f"{_AGENTS}:RESTORE"),
    ("admin lock", "Shut a user, a node, a terminal or everything out", f"{_LOCKS}:LOCK"),
    ("admin unlock", "End a lock", f"{_LOCKS}:UNLOCK"),
    ("admin locks", "What is locked, by whom and why", f"{_LOCKS}:LOCKS"),
)
"""One of two words is a command of the group its first word names."""

GROUPS: tuple[tuple[str, str], ...] = (
    ("admin", "Operate the cluster; `lattice admin --help` lists how"),
)

_HEAD = """\
Usage: lattice COMMAND [OPTIONS] [ARGS]...

  See into your own jobs: what waits and why, what runs, what became of it.

Commands:
"""
_TAIL = """
Options:
  --version   Show the version and exit.
  -h, --help  Show this message and exit.

  Begin with `lattice login`, then `lattice status`.
  `lattice COMMAND --help` explains a command.
"""


def commands_of(group: str) -> tuple[tuple[str, str, str], ...]:
    """The commands of a group by their second word; of the root for an empty name."""
    if not group:
        return tuple(each for each in COMMANDS if " " not in each[0])
    named = f"{group} "
    return tuple(
        (name.removeprefix(named), summary, place)
        for name, summary, place in COMMANDS
        if name.startswith(named)
    )


def root_help() -> str:
    """What `lattice --help` prints."""
    lines = [(name, summary) for name, summary, _ in commands_of("")] + list(GROUPS)
    width = max(len(name) for name, _ in lines)
    return _HEAD + "".join(f"  {name.ljust(width)}  {text}\n" for name, text in lines) + _TAIL
