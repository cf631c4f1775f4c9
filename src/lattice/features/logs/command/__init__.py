"""`lattice logs`: options to calls to text."""
