"""The rules, one file each: what it reads, its verdict, its evidence, its remedy. Pure.

A rule is an object with a name; the list of those in force is passed to whoever judges, so that a
site can add some and leave some out. `judging` runs them, `saying` has the words that all share.
"""
