"""The port `SubmitGate` by the root helper beside the server: signs grants and parses answers.

The script is passed as sealed memory. Its digest is in the request, and the request's digest is in
the grant. The output of `sbatch` comes back unchanged, except that it is made safe to show.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from collections.abc import Sequence

from lattice.access.grants import GrantSigner
from lattice.adapters.helper.channel import HelperChannel
from lattice.base import packet
from lattice.base.errors import (
    InternalError,
    LatticeError,
    PermissionRefused,
    Unavailable,
    UsageError,
)
from lattice.base.text import inert
from lattice.domain.grant import GATE
from lattice.domain.privileged import Answer, Outcome, Question, digest_of, verb_of
from lattice.domain.submission import (
    CancelQuestion,
    ProgramRefused,
    SubmitQuestion,
    Submitted,
    Submitter,
    Unsure,
)

_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
SLURM_AWAY = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Connection refused|"
    r"Unable to establish control machine address|backup controller in standby|"
    r"Slurm temporarily unable",
    re.IGNORECASE,
)
_ONE_SECOND = 1.0
LOG_HINT = "An administrator finds the reason in the log of lattice-helper."


class HelperGate:
    """Signs grants, sends requests, and converts the helper's answers to those of the port."""

    def __init__(self, channel: HelperChannel, signer: GrantSigner) -> None:
        self._channel = channel
        self._signer = signer

    async def submit(self, who: Submitter, question: SubmitQuestion, script: bytes) -> Submitted:
        memory = sealed(script)
        try:
            answer = await self._ask(who, question, (memory,))
        finally:
            os.close(memory)
        job, _, cluster = answer.output.partition(";")
        return Submitted(int(job), cluster, tuple(map(safe_text, answer.notes)))

    async def cancel(self, who: Submitter, question: CancelQuestion) -> None:
        await self._ask(who, question)

    async def _ask(
        self, who: Submitter, question: Question, descriptors: Sequence[int] = ()
    ) -> Answer:
        try:
            answer, passed = await ask_gate(
                self._channel, self._signer, question, who.subject, who.user, descriptors
            )
        except Unavailable as away:
            raise Unavailable(
                f"The part of Lattice that acts as you is away: {away.message}",
                hint="sbatch and scancel on a login node work meanwhile; an administrator "
                "starts lattice-helper again.",
            ) from None
        except OSError as error:
            raise Unsure(
                f"The submit gate did not say what became of this: {error or 'no answer'}.",
                hint="Look with `lattice status` before you try again.",
            ) from None
        packet.close_all(passed)
        if answer.outcome is not Outcome.DONE:
            raise _error(answer)
        return answer


async def ask_gate(
    channel: HelperChannel,
    signer: GrantSigner,
    question: Question,
    subject: str,
    user: str = "",
    descriptors: Sequence[int] = (),
) -> tuple[Answer, list[int]]:
    """The gate's answer to a question with a grant for exactly that.

    A gate takes no grant from before its start, and grants are signed by whole seconds. So one that
    has just started gets the question twice.
    """
    act, digest = verb_of(question).act, digest_of(question)
    grant = signer.issue(act, GATE, subject=subject, user=user, digest=digest)
    answer, passed = await channel.ask(grant, question, descriptors)
    if answer.outcome is not Outcome.UNTIMELY:
        return answer, passed
    packet.close_all(passed)
    await asyncio.sleep(_ONE_SECOND)
    grant = signer.issue(act, GATE, subject=subject, user=user, digest=digest)
    return await channel.ask(grant, question, descriptors)


def sealed(content: bytes) -> int:
    """A descriptor of sealed memory with this content."""
    memory = os.memfd_create("lattice-script", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(memory, rest) :]
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory


def safe_text(text: str) -> str:
    return "\n".join(inert(line) for line in text.splitlines())


def _error(answer: Answer) -> LatticeError:
    message = safe_text(answer.message)
    if answer.outcome is Outcome.FAILED:
        return _program_error(message, answer.exit_code)
    known: dict[Outcome, LatticeError] = {
        Outcome.ACCOUNT_REFUSED: PermissionRefused(
            message, hint="`lattice whoami` shows your Unix user."
        ),
        Outcome.DIRECTORY_REFUSED: UsageError(
            message, hint="Name a directory that you can enter on the cluster."
        ),
        Outcome.UNSURE: Unsure(message, hint="Look with `lattice status` before you try again."),
        Outcome.BUSY: Unavailable(
            f"The submit gate is busy: {message}.", hint="Try again in a few seconds."
        ),
        Outcome.BAD_QUESTION: UsageError(f"The submit gate can't take this: {message}."),
        Outcome.REFUSED: Unavailable("The submit gate does not accept this server.", hint=LOG_HINT),
        Outcome.UNTIMELY: Unavailable(
            f"The submit gate goes by another clock than this server: {message}.",
            hint="An administrator sets the clocks of both right.",
        ),
    }
    failed = InternalError(f"The submit gate failed: {message}.", hint=LOG_HINT)
    return known.get(answer.outcome, failed)


def _program_error(message: str, exit_code: int) -> LatticeError:
    if SLURM_AWAY.search(message):
        return Unavailable(message, hint="Slurm's controller does not answer; try again soon.")
    hint = f"These are Slurm's own words (exit code {exit_code})."
    return ProgramRefused(message, hint=hint, exit_code=exit_code)
