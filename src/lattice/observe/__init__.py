"""How a server observes nodes: streams to them, queries to the metric store, and conditions.

Features use it. It imports no feature.
"""
