"""`lattice compare` and its `--fail-on`."""
