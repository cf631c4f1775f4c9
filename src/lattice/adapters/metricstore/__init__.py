"""The port `MetricStore` over HTTP: VictoriaMetrics, or any Prometheus with remote write.

Data path: `write` encodes by `lattice.wire.remotewrite` (protobuf, Snappy) and posts to
/api/v1/write; `write_encoded` posts what its caller has encoded.
`onlywrite` does the same for nodes, with no client library and no queries. `query`, `query_range`
and `series` post forms; `answers` parses the JSON into `SeriesPoints`.

Limits: an answer has 64 MB at most; the caller limits a write. Connections are reused.

When the store is down: `StoreSilent`, with the error. If the store hangs, not every caller waits
for the timeout. After one timeout, callers fail at once while one of them tries (`Circuit`). Writes
and queries are separate.
"""
