"""`lattice watch` and its options."""
