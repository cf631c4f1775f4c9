"""Generated from proto/etcd by scripts/generate; never edited by hand."""
