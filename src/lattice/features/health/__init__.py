"""Health: the state of the server, its own metrics, and the description of its interface.

Data path    process ─► service ─► operations | wire; no user data passes here.
             A loop asks metric store and object store every 15 s, so that health costs nothing.
Bounds       Health and readiness are public: a state and a fixed reason for each engine, no
             addresses. Metrics need a role.
When down    An engine: `degraded`, with the engine named. The server stays ready, with what it
             knows. It is not ready until Slurm and the agreed state were read once.
Promises     AUTH-6, OPS-1.
"""
