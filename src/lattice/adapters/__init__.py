"""Implementations of the domain's ports: one folder for each engine."""
