"""The scoped Prometheus API: one's own series, and no others, for tools that speak PromQL.

Data path    Grafana ─ the viewer's own token ─► http | rpc ─► service ─ parse, narrow, write anew
             ─► metric store ─► the answer as Prometheus gives it
Scope        a query is parsed whole, every selector in it gets the caller's user and the prefix of
             our metrics, and what is sent is written from the tree: no letter of what a caller
             sent is passed on. What is not understood is refused. Whatever the role, it shows
             the caller's own allocations: reads of others' are for `top`, which writes them down.
Bounds       a query has 8 KiB, 100 selectors and 40 levels; a range 11 000 steps; an answer what
             the store gives within 15 s. Five questions count as one of the caller's metric
             questions a minute: a dashboard asks often, and each of its questions is small.
When down    the metric store: 503 in Prometheus' form. Nothing is made up.
Promises     TOP-6.
"""
