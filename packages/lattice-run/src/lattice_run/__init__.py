"""Names the Slurm job and the Lattice allocation on a training's telemetry, without its code.

    facts.py    what the job says of itself, from environment and control group → attributes
    otel.py     entry point `opentelemetry_resource_detector`
    mlflow.py   entry point `mlflow.run_context_provider`

It reads the environment and one file of the kernel. It opens no connection, starts nothing, and
raises nothing: outside a job, or where something can't be read, attributes are missing.
"""

__version__ = "0.1.0"
