"""Options that several commands share, and the lookup of allocations by name."""

from __future__ import annotations

from lattice.base.command import Option
from lattice.base.errors import NotFound, UsageError
from lattice.base.shell import Shell
from lattice.domain.allocation import BadReference, State, parse_reference
from lattice.features.allocations import operations
from lattice.features.allocations.model import AllocationCard, AllocationList
from lattice.features.allocations.render.states import source_notes

_SHORT = {
    "PD": State.PENDING,
    "CF": State.CONFIGURING,
    "R": State.RUNNING,
    "S": State.SUSPENDED,
    "ST": State.STOPPED,
    "CG": State.COMPLETING,
    "RQ": State.REQUEUED,
    "RH": State.REQUEUE_HOLD,
    "CD": State.COMPLETED,
    "F": State.FAILED,
    "CA": State.CANCELLED,
    "TO": State.TIMEOUT,
    "NF": State.NODE_FAIL,
    "PR": State.PREEMPTED,
    "OOM": State.OUT_OF_MEMORY,
    "BF": State.BOOT_FAIL,
    "DL": State.DEADLINE,
}
_GROUPS = {
    "all": (),
    "finished": tuple(state.value for state in State if state.finished),
    "unfinished": tuple(state.value for state in State if not state.finished),
}
_LIST_HINT = "`lattice status` lists yours, `lattice history` older ones."


def read_states(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of states: words, Slurm's letters or group names."""
    found: list[str] = []
    for word in text.split(","):
        plain = word.strip().lower().replace("-", "_")
        if plain in _GROUPS:
            found.extend(_GROUPS[plain])
        elif word.strip().upper() in _SHORT:
            found.append(_SHORT[word.strip().upper()].value)
        elif plain in {state.value for state in State}:
            found.append(plain)
        else:
            raise UsageError(
                f"{word.strip()!r} is no state",
                hint="States are running, pending, completed, failed, … or Slurm's R, PD, CD, F; "
                "`all`, `finished` and `unfinished` stand for several.",
            )
    return tuple(found)


def resolve(shell: Shell, text: str) -> str:
    """Return the reference for `text`: an id, `@last`, or a name that only one job has."""
    if text == "@last":
        own = shell.call(operations.list_allocations()).allocations
        if not own:
            raise NotFound("You have no allocation to call the last.", hint=_LIST_HINT)
        return max(own, key=lambda each: each.submitted).ref
    try:
        return str(parse_reference(text))
    except BadReference:
        pass
    own = shell.call(operations.list_allocations()).allocations
    named = [each for each in own if each.name == text]
    if not named:
        raise NotFound(f"No allocation of yours has the id or name {text!r}.", hint=_LIST_HINT)
    jobs = {(each.array.job_id if each.array else each.job_id): each for each in named}
    if len(jobs) > 1:
        ids = ", ".join(each.id for each in named[:8])
        raise UsageError(
            f"Several allocations are named {text!r}: {ids}", hint="Name one by its id."
        )
    return named[0].ref if len(named) == 1 else str(next(iter(jobs)))


def own_job(shell: Shell) -> str | None:
    """Return the id of the job that the command runs in, or None."""
    environment = shell.environment
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    name = f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
    try:
        return str(parse_reference(name))
    except BadReference:
        return None


def warn_of_sources(shell: Shell, answer: AllocationList | AllocationCard) -> None:
    """Warn about each source that does not answer."""
    for line in source_notes(answer.sources, shell.style, shell.clock.now()):
        shell.warn(line)


STATE = Option(
    "-s",
    "--state",
    metavar="STATE",
    read=read_states,
    repeat=True,
    help="Only these, by words or Slurm's letters, with commas between.",
    complete="states",
)
USER = Option("-u", "--user", metavar="NAME", help="Another owner's, where you may see them.")
ALL = Option("-a", "--all", help="All you may see: a tenant admin the tenant's, an admin all.")
