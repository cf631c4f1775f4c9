"""`lattice top`: the command, and the live screen it shows in a terminal."""
