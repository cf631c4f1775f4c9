"""The port `RunStore` over the REST interface of an MLflow tracking server.

Data path: `store` posts searches to /api/2.0/mlflow; `answers` parses the JSON.

Only the configured address is asked. Redirects are not followed and no proxy of the environment is
used, so nothing that a run says can send a server anywhere. Artifacts are never read.

Limits: an answer has 16 MB at most, a call 5 s.

When it is down: `RunStoreSilent`, with the reason. After one failure, callers fail at once for some
seconds while one of them tries.
"""
