"""What differs between runs.

`finding` checks access to each run. `series` reads the metric store or stored summaries.
`statistics` computes, and `judging` turns that into differences and moments of divergence.
`settings` compares the requests, and `comparing` assembles the answer.
"""
