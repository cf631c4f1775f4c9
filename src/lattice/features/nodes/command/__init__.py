"""`lattice nodes` and `lattice admin drain|undrain|disable|enable`: options to calls to text."""
