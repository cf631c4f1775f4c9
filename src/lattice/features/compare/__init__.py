"""Compare: what differs between runs, since when, and how certain that is.

Data path    command ─► operations ─► wiring ─► service.compare.
             Then each run ─► access.output.
             ─► service.series ─► port MetricStore, or the stored run summary.
             ─► domain.statistics (pure) ─► service.metric_comparison ─► render.
Scope        Every run is looked up and checked as for `lattice top`; no query starts before all
             are. Sensitive work is compared only with sensitive work.
Bounds       8 runs, 16 metrics, 2 880 samples per metric and run. Four queries to the metric store
             at a time. Comparisons per minute and caller are limited exactly, over all servers.
When down    The metric store: finished runs are compared by their stored summaries; a running one
             has no numbers, with the reason. The object store: only the metric store's data is
             used.
Promises     COMPARE-1, COMPARE-2, COMPARE-3, COMPARE-4, SRC-1, SRC-2, LIMIT-1.
"""
