"""Converts between protobuf and measurements. Both ends of the wire use it.

- `batches`: samples on their way to a server; times and labels, as every message has them
- `stamps`: the owner's labels, and the series as the metric store gets it
- `job_settings`: a node's settings for its jobs
- `snapshots`: a node's current snapshot of a job

Invalid input raises `BadSamples` or `BadSnapshot`, or is left out and counted. It never becomes a
number.
"""
