"""`lattice nodes` and `lattice admin drain|undrain|disable|enable`."""
