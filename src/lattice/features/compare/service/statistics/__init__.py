"""The statistics of a comparison: pure functions that need only the standard library.

`aligning` puts series on one grid. `means` estimates the error of a mean of correlated samples.
`differing` compares two means. `parting` finds when two runs diverge. `student` has the t
distribution. docs/adr explains the choice of methods, and `just soak compare` tests them.
"""
