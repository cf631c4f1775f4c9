"""The settings of lattice-server for terminals in jobs."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.base.config import ConfigReport
from lattice.base.config_checks import check_url
from lattice.base.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachSection:
    origins: tuple[str, ...] = setting(
        (),
        "Pages of which origins may open terminals, each exactly as a browser writes it: "
        "`https://lattice.example.org`. Empty: none; the CLI needs none.",
    )
    uncontained: bool = setting(
        False,
        "Enter jobs too that have no extern step, because slurm.conf lacks "
        "`PrologFlags=Contain`: such a terminal is neither counted nor limited with its job.",
    )
    record_days: float = setting(
        30.0, "How long the record of a session is kept after its end.", least=1, most=3650
    )


def judge_attach(attach: AttachSection, report: ConfigReport) -> None:
    """Report invalid origins."""
    for index, origin in enumerate(attach.origins):
        path = f"attach.origins[{index}]"
        check_url(path, origin, report, outside=("https",))
        if origin.count("/") != 2 or origin != origin.lower():
            report.problem(path, "must be scheme and host alone, as a browser writes them")
