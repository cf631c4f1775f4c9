"""The statistics of a comparison: pure functions on numbers, with the standard library alone.

`aligning` puts series onto one grid; `steady` finds where a run has warmed up; `means` says how
well a mean is known when neighbours resemble each other; `differing` compares two of them;
`parting` finds when two runs part; `student` has the one distribution that all of it needs.
docs/adr says why these methods, `just soak compare` what they hold.
"""
