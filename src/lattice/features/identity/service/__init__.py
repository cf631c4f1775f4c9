"""The caller's identity, and a module for each proof that the servers themselves accept."""
