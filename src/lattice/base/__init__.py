"""What every process stands on: errors, time, configuration, calls, text. Knows nothing else."""
