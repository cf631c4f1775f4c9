"""A job's resource use, from the metric store or from the agents.

`composer` builds queries, and `stored` runs them. `figures` parses the answers, and computes the
same figures from agents. `rows` makes rows, `reasons` finds out why
values are missing, and `top` assembles the answer.
"""
