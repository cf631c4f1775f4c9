"""The use cases: submit at most once for a key, cancel the caller's own."""
