"""Schema v0.0.41 (Slurm 24.05).

As v0.0.40 in what is read here; the accounting store tells the output path as well.
"""

from __future__ import annotations

from lattice.adapters.slurm.schema.modern import ModernSchema


class SchemaV0041(ModernSchema):
    """Slurm 24.05."""

    version = "v0.0.41"
