"""A job's resource use, from the metric store or from the agents.

`composing` builds queries and `climbs` those for counters; `stored` runs them; `figures` parses the
answers. `sights` computes the same figures from agents. `shaping` makes rows, `reasons` finds out
why values are missing, and `looking` assembles the answer.
"""
