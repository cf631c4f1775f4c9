"""Names the Slurm job and the Lattice allocation on a training's telemetry, without its code.

    facts.py    what the job says of itself, from environment and control group → attributes
    otel.py     entry point `opentelemetry_resource_detector`
    mlflow.py   entry point `mlflow.run_context_provider`
    event.py    reports an event of the job to its node, for the timeline

The entry points read the environment and one file of the kernel. They open no connection, start
nothing, and raise nothing: outside a job, or where something can't be read, attributes are missing.
"""

__version__ = "0.1.0"
