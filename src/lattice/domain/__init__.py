"""The nouns of Lattice and the ports to the engines: pure, no I/O, no frameworks."""
