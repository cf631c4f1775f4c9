"""The gate's verbs for people: they run the real `sbatch` and `scancel` as the caller.

The paths of the programs are fixed when the helper starts. A request only adds options, each a
separate item of an argument list. No shell parses them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from lattice.domain.administration import AdministrationQuestion
from lattice.domain.grant import Grant
from lattice.domain.privileged import VERBS, Answer, Outcome
from lattice.domain.submission import LARGEST_SCRIPT_BYTES, CancelQuestion, SubmitQuestion
from lattice.helper.account import AccountRefused, Accounts
from lattice.helper.child_slots import SlotShare
from lattice.helper.login import DirectoryRefused, LoginEnded, Program, run
from lattice.helper.privilege import Kernel

_ID = re.compile(r"[1-9][0-9]{0,9}(?:;[A-Za-z0-9_.-]{1,64})?")
_MOST_SUBMISSIONS_A_USER = 2
_MOST_CANCELLATIONS = 4
_MOST_CANCELLATIONS_A_USER = 2
_MOST_CHANGES = 2
_ADMINISTRATION = get_args(AdministrationQuestion)
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def gate_shares(most_submissions: int) -> dict[str, SlotShare]:
    """A submission runs a user's profile for up to 30 s. All other verbs have their own slots."""
    administration = SlotShare(_MOST_CHANGES, _MOST_CHANGES)
    return {
        **dict.fromkeys(
            (name for name, verb in VERBS.items() if verb.question in _ADMINISTRATION),
            administration,
        ),
        "submit": SlotShare(most_submissions, _MOST_SUBMISSIONS_A_USER),
        "cancel": SlotShare(_MOST_CANCELLATIONS, _MOST_CANCELLATIONS_A_USER),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """The paths of Slurm's programs, from the helper's options."""

    sbatch: Path
    scancel: Path
    conf: Path | None
    """Not set: Slurm finds its own."""

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.conf)} if self.conf is not None else {}


class Gate:
    """Submits and cancels. Each request uses it in its own child."""

    def __init__(
        self, kernel: Kernel, accounts: Accounts, slurm: Slurm, *, timeout_s: float
    ) -> None:
        self._kernel = kernel
        self._accounts = accounts
        self._slurm = slurm
        self._timeout_s = timeout_s

    def submit(self, grant: Grant, question: SubmitQuestion, descriptors: Sequence[int]) -> Answer:
        """Run `sbatch` with the script on its standard input."""
        if len(descriptors) != 1:
            return Answer(outcome=Outcome.BAD_QUESTION, message="one descriptor: the script")
        (script,) = descriptors
        if fault := script_fault(script, question.script_sha256):
            return Answer(outcome=Outcome.BAD_QUESTION, message=fault)
        argv = [str(self._slurm.sbatch), "--parsable", *question.options]
        if question.arguments:
            # sbatch takes arguments only after a script's name; this one is its standard input.
            argv += ["/dev/stdin", *question.arguments]
        ended = self._run(
            grant,
            argv,
            environment=dict(question.environment),
            directory=question.directory,
            directory_required=question.directory_required,
            stdin=script,
        )
        return ended if isinstance(ended, Answer) else _submitted(ended)

    def cancel(self, grant: Grant, question: CancelQuestion, descriptors: Sequence[int]) -> Answer:
        """Run `scancel` once for all jobs; it reads neither the profile nor the home directory."""
        if descriptors:
            return Answer(outcome=Outcome.BAD_QUESTION, message="no descriptors")
        argv = [str(self._slurm.scancel), *question.jobs]
        ended = self._run(grant, argv, directory="/", with_profile=False)
        if isinstance(ended, Answer):
            return ended
        # scancel prints an error for each job it can't cancel, and may still exit with 0.
        if ended.code == 0 and not ended.err.strip():
            return Answer(outcome=Outcome.DONE, notes=ended.notes)
        return _failed(ended, "scancel")

    def _run(
        self,
        grant: Grant,
        argv: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        directory: str = "",
        directory_required: bool = False,
        stdin: int = -1,
        with_profile: bool = True,
    ) -> LoginEnded | Answer:
        try:
            account = self._accounts.find(grant.user)
        except AccountRefused as refusal:
            return Answer(outcome=Outcome.ACCOUNT_REFUSED, message=str(refusal))
        program = Program(
            account=account,
            argv=argv,
            environment={**self._slurm.environment, **(environment or {})},
            directory=directory,
            directory_required=directory_required,
            stdin=stdin,
            with_profile=with_profile,
        )
        try:
            ended = run(self._kernel, self._accounts.defaults, program, self._timeout_s)
        except DirectoryRefused:
            return Answer(
                outcome=Outcome.DIRECTORY_REFUSED,
                message=f"{directory} can't be entered as {grant.user} on the submit host.",
            )
        if ended.code is None:
            return Answer(
                outcome=Outcome.UNSURE,
                message=f"{Path(argv[0]).name} did not end within {self._timeout_s:g} s.",
                output=ended.out,
                notes=ended.notes,
            )
        return ended


def script_fault(descriptor: int, digest: str) -> str:
    """Why this is not the granted script, or an empty string.

    Only sealed memory is accepted: it can't change after the check, and reading it can't hang.
    """
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_SCRIPT_BYTES:
        return "the script is no file of an allowed size"
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        seals = 0
    if seals & _SEALS != _SEALS:
        return "the script is not sealed"
    text = os.pread(descriptor, LARGEST_SCRIPT_BYTES, 0)
    if hashlib.sha256(text).hexdigest() != digest:
        return "the script is not the one that was granted"
    os.lseek(descriptor, 0, os.SEEK_SET)
    return ""


def _submitted(ended: LoginEnded) -> Answer:
    output = ended.out.strip()
    if ended.code == 0 and _ID.fullmatch(output):
        warning = ended.err.strip()
        notes = (*ended.notes, warning) if warning else ended.notes
        return Answer(outcome=Outcome.DONE, output=output, notes=notes)
    return _failed(ended, "sbatch")


def _failed(ended: LoginEnded, name: str) -> Answer:
    code = ended.code or 0
    message = ended.err.strip() or ended.out.strip()
    if not message:
        message = f"{name} ended with exit code {code} and said nothing."
        if ended.noise.strip():
            message += f" Your login profile said: {ended.noise.strip()}"
        else:
            message += " A login profile that ends or replaces the shell does that."
    return Answer(outcome=Outcome.FAILED, message=message, exit_code=code, notes=ended.notes)
