"""Lattice: the job owner's window into a GPU or HPC cluster.

The tree below is a grid: a folder is a capability or a layer, a file name says in which process
it runs. ARCHITECTURE.md draws it; the import contracts in pyproject.toml hold it.
"""

__version__ = "0.1.0"
