"""The scoped Prometheus API: the caller's own series, for tools that use PromQL.

Data path    Grafana ─ the viewer's own token ─► http | rpc ─► service.
             service ─ parse, narrow, rewrite ─► metric store ─► answer in Prometheus' format.
Scope        The server parses the whole query. It adds the caller's user and our metric prefix to
             every selector, and sends text generated from the tree. The caller's own text is never
             passed on, and unknown syntax is refused. Every role sees only the caller's own
             allocations: `top` reads those of others, and logs it.
Bounds       A query has 8 KiB, 100 selectors and 40 levels; a range has 11 000 steps; the store has
             15 s to answer. Five queries count as one of the caller's metric queries per minute: a
             dashboard sends many, and each is small.
When down    The metric store: 503 in Prometheus' format.
Promises     TOP-6.
"""
