"""Every schema version that Lattice supports, in one list."""

from __future__ import annotations

from lattice.adapters.slurm.schema import Schema
from lattice.adapters.slurm.schema.modern import ModernSchema
from lattice.adapters.slurm.schema.v0_0_38 import SchemaV0038


class SchemaV0044(ModernSchema):
    """Slurm 25.11."""

    version = "v0.0.44"


class SchemaV0043(ModernSchema):
    """Slurm 25.05."""

    version = "v0.0.43"


class SchemaV0042(ModernSchema):
    """Slurm 24.11."""

    version = "v0.0.42"


class SchemaV0041(ModernSchema):
    """Slurm 24.05."""

    version = "v0.0.41"


class SchemaV0040(ModernSchema):
    """Slurm 23.11."""

    version = "v0.0.40"


class SchemaV0039(ModernSchema):
    """Slurm 23.02."""

    version = "v0.0.39"


def known_schemas() -> tuple[Schema, ...]:
    """One decoder for each version, oldest first."""
    return (
        SchemaV0038(),
        SchemaV0039(),
        SchemaV0040(),
        SchemaV0041(),
        SchemaV0042(),
        SchemaV0043(),
        SchemaV0044(),
    )
