"""Logs on a server.

- `log_keys`: the keys of an attempt in the store.
- `intake`: grants for a node's helper, and chunks from nodes to the store.
- `archive`, `indexes`: the stored streams of an attempt, the text of a range, chunk indexes.
- `frames`: stored frames, expanded or as they are.
- `seal`, `checks`, `metadata`: seals of stored logs, made and verified.
- `live_feeds`, `live_stream`: one open node stream for each node and attempt, for all viewers.
- `view`, `merge`: one stream of a query, and streams merged in the order of time.
- `wakeups`: what changed on the nodes since a follower last read.
- `query_streams`: the streams of a query, found in the store and on the nodes.
- `log_query`: one query in progress; `shared_follow`: one run for all followers of a query.
- `log_service`: access checks; `records`: what callers read.
- `retention`: removal of old logs.
"""
