"""The command `lattice logs`."""
