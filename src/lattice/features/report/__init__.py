"""Report: what a job requested, what it used, and what to request next time.

Data path    command ─► operations ─► wiring ─► service.report ─► stored summary (ObjectStore).
             Without one ─► service.run_meter ─► port MetricStore, then port Accounting.
             An attempt ends ─► service.summaries, on one of the servers ─► ports as above.
             ─► one document (`lattice.domain.runsummary`) in the object store, put if absent.
Bounds       A report is at most three queries to the metric store, and counts as one of the
             caller's metric queries. A stored summary has at most 200 points per metric.
When down    Metric store: Slurm's accounting gives what it has, each figure names its source, and
             no summary is stored until it answers. Object store: reports come from the metric
             store. Summaries wait, and the next server finds the attempts again in slurmdbd.
Promises     TOP-5, SRC-1, SRC-2, AUTH-7, AUTH-12.
"""
