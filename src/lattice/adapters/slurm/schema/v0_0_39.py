"""Schema v0.0.39 (Slurm 23.02).

Numbers that can be missing are objects, times and states still plain: a state is one word, an exit
code `{"set", "number"}` around a wait status. No answer tells its `last_update`.
"""

from __future__ import annotations

from lattice.adapters.slurm.schema.modern import ModernSchema


class SchemaV0039(ModernSchema):
    """Slurm 23.02."""

    version = "v0.0.39"
