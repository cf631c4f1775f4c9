"""PromQL parsed, narrowed to its caller, and asked.

`lexing` and `parsing` read a query into `tree`; `scoping` puts the caller's labels into every
selector; `moments` reads times; `asking` answers.
"""
