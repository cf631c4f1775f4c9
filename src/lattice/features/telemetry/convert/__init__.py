"""Converts between protobuf and measurements. Both ends of the wire use it.

- `pieces`: times and labels, as every message has them
- `batches`: samples on their way to a server
- `stamps`: the owner's labels, and the series as the metric store gets it
- `told`: a node's settings for its jobs
- `looks`: a node's current snapshot of a job

Invalid input raises `BadSamples` or `BadSnapshot`, or is left out and counted. It never becomes a
number.
"""
