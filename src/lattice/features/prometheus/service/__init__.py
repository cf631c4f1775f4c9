"""Parses PromQL, narrows it to the caller, and runs it.

`lexer` and `parser` read a query into `tree`. `scope` adds the caller's labels to every selector.
`queries` parses times and runs the calls.
"""
