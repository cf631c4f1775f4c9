"""MLflow's run-context provider: MLflow finds it by itself and asks it at the start of each run.

It is no subclass of MLflow's class. MLflow asks for two methods only, and loads this while its own
modules are still being imported.
"""

from __future__ import annotations

from lattice_run.facts import current


class JobContext:
    """The job's attributes as tags of a run. Tags are text."""

    def in_context(self) -> bool:
        return bool(current())

    def tags(self) -> dict[str, str]:
        return {name: str(value) for name, value in current().items()}
