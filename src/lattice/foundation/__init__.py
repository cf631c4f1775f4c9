"""What every feature of a server is wired on: engines behind their ports, and shared parts.

`lattice.server` opens it. A feature's `wiring.py` takes it and returns what the feature offers.
"""
