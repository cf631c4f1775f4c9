"""Report: what a job asked for, what it used, and what to ask for next time.

Data path    command ─► api ─► http | rpc ─► service.reporting ─► kept summary (port ObjectStore),
             else service.measuring ─► port MetricStore, and port Accounting where that has nothing
             an attempt ends ─► service.keeping, on one of the servers ─► ports as above
             ─► one document (`lattice.domain.runsummary`) in the object store, put if absent
Bounds       a report is two questions to the metric store, each bounded by the caller's metric
             queries; a kept summary has at most 200 points a metric.
When down    metric store: Slurm's accounting says what it can, each figure names its source, and
             nothing is kept until it answers. Object store: reports come from the metric store;
             what is to be kept waits, and is found again in Slurm's past by the next server.
Promises     TOP-5, SRC-1, SRC-2, AUTH-7, AUTH-12.
"""
