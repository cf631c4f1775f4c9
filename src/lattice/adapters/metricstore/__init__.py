"""The port `MetricStore` over HTTP: VictoriaMetrics, or any Prometheus that takes remote write.

Data path    write ─► remotewrite (protobuf, Snappy) ─► POST /api/v1/write
             (onlywrite is the same for nodes: no client, no queries)
             query, query_range, series ─► POST forms ─► answers (JSON) ─► `SeriesPoints`
Bounds       an answer has 64 MB at most; a write what its caller gives it. Connections are kept.
When down    `StoreSilent`, in the words of what went wrong. Of a store that hangs not everybody
             waits for the time-out: after one, callers fail at once while one of them tries
             (`circuit`); writes and queries apart.
"""
