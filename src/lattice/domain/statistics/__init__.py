"""The statistics of comparisons: pure functions that need only the standard library.

`track` puts series on one grid. `mean_difference` estimates means of correlated samples, and
compares two of them. `divergence` finds when two runs diverge. `sureness` names how certain a
difference is. `student` has the t distribution.
docs/adr explains the choice of methods, and `just soak compare` tests them.
"""
