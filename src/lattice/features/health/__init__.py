"""Health: the state of the server, its own metrics, and the description of its interface.

Data path    process ─► service ─► operations | wire; no user data passes here.
Bounds       Health is public and has one word on the server and one on the state store. Metrics
             need a role.
When down    The server is down and does not answer.
Promises     AUTH-6.
"""
