"""`lattice status`, `lattice history` and `lattice wait`: options to calls to text."""
