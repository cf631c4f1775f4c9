"""Generated from proto/spiffe by scripts/generate; never edited by hand."""
