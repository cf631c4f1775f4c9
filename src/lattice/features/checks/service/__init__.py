"""Submits checks, reads their results, and keeps the newest of each node."""
