"""Compare: what differs between runs, since when, and how sure that is.

Data path    command ─► api ─► http | rpc ─► service.comparing ─► each run through the one door
             ─► service.series ─► port MetricStore, or the summary that is kept of the run
             ─► service.statistics (pure) ─► service.judging ─► faces
Scope        every run is found and entered as for `lattice top`; no query is made before all are.
             Sensitive work is compared with sensitive work alone.
Bounds       8 runs, 16 metrics, 2 880 samples a metric and run, four questions to the metric store
             at a time; a caller has a number of comparisons a minute, exact over all servers.
When down    the metric store: runs that are over are compared by their kept summaries; a run that
             goes on has no numbers, and the reason. The object store: what the metric store has.
Promises     COMPARE-1, COMPARE-2, COMPARE-3, COMPARE-4, SRC-1, SRC-2, LIMIT-1.
"""
