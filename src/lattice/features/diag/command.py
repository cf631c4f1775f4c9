"""`lattice diag`: faults of a job with evidence and remedy."""

from __future__ import annotations

from lattice.base.command import Argument, Command, Option
from lattice.base.errors import UsageError
from lattice.base.shell import Shell
from lattice.features.diag import operations
from lattice.features.diag.model import Area, Verdict

EXIT_STATUS = {
    Verdict.OK: 0,
    Verdict.ATTENTION: 110,
    Verdict.BAD: 111,
    Verdict.UNKNOWN: 112,
}


def diag(
    shell: Shell,
    *,
    id: str | None,  # noqa: A002 - the word people read in the usage line
    network: bool,
    storage: bool,
    gpu: bool,
    stacks: bool,
    all: bool,  # noqa: A002 - the option's name
    exit_status: bool,
) -> int:
    """Show the diagnosis, or with `stacks` the stacks of all ranks."""
    flags = {Area.NETWORK: network, Area.STORAGE: storage, Area.GPU: gpu}
    areas = tuple(area for area, wanted in flags.items() if wanted)
    if stacks:
        if areas or exit_status:
            raise UsageError("--stacks is a page of its own", hint="Take the other options away.")
        return _stacks(shell, id, everything=all)
    diagnosis = shell.call(operations.diagnose(shell.reference(id), areas=areas))
    if shell.output in {"json", "yaml"}:
        shell.document(diagnosis)
    else:
        from lattice.features.diag.render import page  # noqa: PLC0415

        everything = all or shell.output == "wide"
        shell.page([page(diagnosis, shell.style, everything=everything)])
    return EXIT_STATUS[diagnosis.verdict] if exit_status else 0


def _stacks(shell: Shell, id_: str | None, *, everything: bool) -> int:
    shell.note("The stacks of every rank are taken; the job goes on.")
    picture = shell.call(operations.take_stacks(shell.reference(id_)))
    if shell.output in {"json", "yaml"}:
        shell.document(picture)
        return 0
    from lattice.features.diag.render import stacks  # noqa: PLC0415

    shell.page([stacks(picture, shell.style, everything=everything)])
    return 0


DIAG = Command(
    "diag",
    summary="What is sick about a job, how we know, and what to do",
    text="Looks at a running job from all sides at once and says first what is sick: with the "
    "numbers behind it, the node, rank or GPU, and what to do. Then what is well, and what is not "
    "known, with the reason: — is never ✓.\n\n"
    "--stacks shows where every rank of your own job stands, taken inside the job without "
    "stopping it: Python by py-spy where that is installed, else the kernel's view.\n\n"
    "With --exit-status: 0 ok, 110 attention, 111 bad, 112 unknown.",
    run=diag,
    params=(
        Argument("id", required=False, complete="allocations"),
        Option("--network", help="Only the network."),
        Option("--storage", help="Only file systems."),
        Option("--gpu", help="Only GPUs."),
        Option("--stacks", help="Where every rank stands, merged over all nodes."),
        Option("-a", "--all", help="Evidence and source of every line, and whole stacks."),
        Option("--exit-status", help="Tell the verdict by the exit code."),
    ),
    examples=(
        ("lattice diag 12345", "one page: the verdict first"),
        ("lattice diag 12345 --network", "links, switches, packets sent again"),
        ("lattice diag 12345 --stacks", "which rank the others wait for"),
        ("lattice diag @last --exit-status -q", "for a script"),
    ),
    permission="any role, for your own and what is shared with you; --stacks for your own",
)
