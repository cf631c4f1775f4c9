"""`lattice bench capture` and `lattice bench compare`: they need no server."""
