"""What differs between runs.

`compare` checks access to each run and assembles the answer. `series` reads the metric store or
stored summaries. `statistics` computes, and `metric_comparison` turns that into differences.
`settings` compares the requests.
"""
