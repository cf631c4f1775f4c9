"""The files of a job, out of what scontrol prints."""

from __future__ import annotations

import pytest

from lattice.adapters.slurm.job_details import parse_outputs
from lattice.domain.logs import LogKind

SHOWN = """JobId=20 JobName=wrap
   UserId=alice(3001) GroupId=alice(3001) MCS_label=N/A
   BatchHost=n3
   StdErr={err}
   StdIn=/dev/null
   StdOut={out}
   Power=
"""


@pytest.mark.spec("LOG-2")
@pytest.mark.parametrize(
    ("out", "err", "files"),
    [
        ("/h/a.out", "/h/a.out", {LogKind.STDOUT: "/h/a.out"}),
        ("/h/a.out", "/h/a.err", {LogKind.STDOUT: "/h/a.out", LogKind.STDERR: "/h/a.err"}),
        ("/dev/null", "/h/a.err", {LogKind.STDERR: "/h/a.err"}),
        ("/h/with space=x", "/h/with space=x", {LogKind.STDOUT: "/h/with space=x"}),
        ("(null)", "(null)", {}),
    ],
)
def test_files(out: str, err: str, files: dict[LogKind, str]) -> None:
    found = parse_outputs(SHOWN.format(out=out, err=err))
    assert (found.host, found.files) == ("n3", files)
