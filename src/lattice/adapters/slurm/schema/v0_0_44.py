"""Schema v0.0.44 (Slurm 25.11).

As v0.0.43 in what is read here.
"""

from __future__ import annotations

from lattice.adapters.slurm.schema.modern import ModernSchema


class SchemaV0044(ModernSchema):
    """Slurm 25.11."""

    version = "v0.0.44"
