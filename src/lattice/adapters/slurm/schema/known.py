"""Every schema version Lattice knows, in one list."""

from __future__ import annotations

from lattice.adapters.slurm.schema import Schema
from lattice.adapters.slurm.schema.v0_0_38 import SchemaV0038
from lattice.adapters.slurm.schema.v0_0_39 import SchemaV0039
from lattice.adapters.slurm.schema.v0_0_40 import SchemaV0040
from lattice.adapters.slurm.schema.v0_0_41 import SchemaV0041
from lattice.adapters.slurm.schema.v0_0_42 import SchemaV0042
from lattice.adapters.slurm.schema.v0_0_43 import SchemaV0043
from lattice.adapters.slurm.schema.v0_0_44 import SchemaV0044


def known_schemas() -> tuple[Schema, ...]:
    """One decoder each, oldest first."""
    return (
        SchemaV0038(),
        SchemaV0039(),
        SchemaV0040(),
        SchemaV0041(),
        SchemaV0042(),
        SchemaV0043(),
        SchemaV0044(),
    )
