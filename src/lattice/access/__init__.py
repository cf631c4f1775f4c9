"""The identity of the caller and its permissions: pure rules, no I/O."""
