"""Schema v0.0.42 (Slurm 24.11).

As v0.0.41 in what is read here.
"""

from __future__ import annotations

from lattice.adapters.slurm.schema.modern import ModernSchema


class SchemaV0042(ModernSchema):
    """Slurm 24.11."""

    version = "v0.0.42"
