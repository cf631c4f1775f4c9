"""The rules, one file each: input, verdict, evidence, remedy. Pure.

A rule is an object with a name. The judge gets the list of active rules, so a site can add or
remove some. `known` finds those in this folder; `order` is the position of a rule's lines on the
page. `judging` runs the rules, and `saying` has their shared functions.
"""
