"""Between protobuf and what a node measured. Both ends of the wire use it.

- `pieces`: moments and labels, as every message has them
- `batches`: samples on their way to a server
- `stamps`: whose a series is, and the series as the metric store gets it
- `told`: what a node is told of its jobs
- `looks`: what a node says of a job right now

What can't be a measurement raises `BadSamples` or `BadTell`, or is left out and counted; it never
becomes a number.
"""
