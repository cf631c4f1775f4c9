"""What a job uses, asked of the metric store or of the agents.

`promql` writes queries, `composing` says which; `figures` reads what comes back; `shaping` makes
rows of it; `sights` makes the same rows of what agents say; `reasons` finds out why something is
missing; `looking` puts it together.
"""
