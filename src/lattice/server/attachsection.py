"""What lattice-server can be told about terminals in jobs."""

from __future__ import annotations

from dataclasses import dataclass

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
