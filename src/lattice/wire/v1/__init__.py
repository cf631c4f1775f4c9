"""Generated from proto/lattice/v1 by scripts/generate; never edited by hand."""
