"""The lattice-agent process on a compute node."""
