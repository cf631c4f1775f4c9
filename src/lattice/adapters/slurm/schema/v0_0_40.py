"""Schema v0.0.40 (Slurm 23.11).

Times are number objects too, a state is a list, exit codes are objects with `return_code` and
`signal`. Lists tell `last_update`; "nothing changed" is an answer without the list.
"""

from __future__ import annotations

from lattice.adapters.slurm.schema.modern import ModernSchema


class SchemaV0040(ModernSchema):
    """Slurm 23.11."""

    version = "v0.0.40"
