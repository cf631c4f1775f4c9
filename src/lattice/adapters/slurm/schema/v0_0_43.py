"""Schema v0.0.43 (Slurm 25.05).

As v0.0.42; rows of the accounting store tell `restart_cnt`, which settles what is a further run
of a job and what is another job with the same id.
"""

from __future__ import annotations

from lattice.adapters.slurm.schema.modern import ModernSchema


class SchemaV0043(ModernSchema):
    """Slurm 25.05."""

    version = "v0.0.43"
