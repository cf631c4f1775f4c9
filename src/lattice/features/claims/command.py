"""`lattice admin claim`, `lattice admin release` and `lattice admin claims`."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.domain.claim import ClaimStep, is_claim_id
from lattice.domain.nodeset import NodeSet
from lattice.features.claims import operations, render


def claim(shell: Shell, *, node: tuple[str, ...], reason: str | None) -> int:
    """Claim all nodes or none."""
    answer = shell.call(operations.claim_nodes(_folded(node), reason=reason or ""))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    shell.write(render.claimed_line(answer))
    if answer.claim.step is not ClaimStep.CLAIMED:
        shell.note("It is still being made; `lattice admin claims` shows when it is.")
    shell.note(f"To take it back: lattice admin release {answer.claim.id}")
    return 0


def release(shell: Shell, *, target: tuple[str, ...]) -> int:
    """Release one claim."""
    named = target[0] if len(target) == 1 and is_claim_id(target[0]) else _folded(target)
    answer = shell.call(operations.release_nodes(named))
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
    else:
        shell.write(render.released_line(answer))
    return 0


def claims(shell: Shell) -> int:
    """Show the list."""
    answer = shell.call(operations.list_claims())
    if shell.output in {"json", "yaml"}:
        shell.document(answer)
        return 0
    shell.write(render.claim_table(answer, shell.style, shell.clock.now()))
    if not answer.claims:
        shell.note("No node is claimed by you, or by anybody whose claims you may see.")
    return 0


def _folded(named: tuple[str, ...]) -> str:
    try:
        return NodeSet.parse(",".join(named)).fold()
    except ValueError as error:
        raise UsageError(f"These are no nodes: {error}.", hint="Write n1 n2 or n[1-3].") from None


CLAIM = Command(
    "admin claim",
    summary="Claim nodes for your sensitive work",
    text="From now on these nodes run your jobs alone: Slurm gets a reservation for you. All of "
    "them are claimed or none; the first claim of a node counts, and a refusal names who holds "
    "what. Jobs of others that run there refuse it too.\n\n"
    "`lattice submit --vcluster NAME` into a vCluster for sensitive work runs on what you claimed. "
    "It is in the audit log before it happens.",
    run=claim,
    params=(
        Argument("node", repeat=True, complete="nodes"),
        Option("--reason", metavar="TEXT", help="Why; whoever sees the claim reads it."),
    ),
    examples=(('lattice admin claim n[1-4] --reason "trial 7"', "all four or none"),),
    permission="ClaimingUser",
)

RELEASE = Command(
    "admin release",
    summary="Release nodes that were claimed",
    text="Ends a whole claim, named by its id or by its nodes, and Slurm's reservation with it. "
    "While sensitive jobs of the claimer run there it is refused, and names them.",
    run=release,
    params=(Argument("target", repeat=True, complete="nodes"),),
    examples=(
        ("lattice admin release n[1-4]", "by its nodes"),
        ("lattice admin release 3f2a9c01b7de", "by its id"),
    ),
    permission="ClaimingUser for own claims; SystemAdmin",
)

CLAIMS = Command(
    "admin claims",
    summary="Which nodes are claimed, by whom and why",
    text="Claims in force: your own; those of the tenant for a tenant admin; all for operators and "
    "system admins.",
    run=claims,
    params=(),
    examples=(("lattice admin claims", "a row each"),),
    permission="any role",
)
