"""The feature's verbs as calls to the server. No I/O here; the SDK makes the calls.

Two modules: `terminal` for the call that must be made before anything large is loaded, because
somebody waits for a prompt, and `calls` for the others.
"""
