"""The only code that runs as root: a few verbs on a unix socket.

    client ─ packet ─► listener ─ checks ─► one child a request.
                                              │ few capabilities
                                              ▼
                                           a process with the user's rights.

A packet has a grant, a request and descriptors.

There are two roles: `node` beside the agent, `gate` beside the server. A helper of one role has no
verb of the other. It imports the standard library and the few pure modules that define grants and
requests. It needs `cryptography` only if Python's own libcrypto can't verify signatures. A test
checks that.

The gate acts as the caller (`gate`), and as SlurmUser for the few changes that a site allows
(`administration`).

For a terminal in a job (`terminal_verbs`) the helper starts a holder. The holder outlives the
helper and has one capability: to send signals.

The helper runs a path from a request only as the user it belongs to. It holds public keys only, and
uses no network. It drops every capability that its role does not need before it listens.
"""
