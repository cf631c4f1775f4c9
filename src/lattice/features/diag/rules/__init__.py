"""The rules, one file each: input, verdict, evidence, remedy. Pure.

A rule is an object with a name. `engine` gets the list of active rules, so a site can add or remove
some. It also finds those in this folder; `order` is the position of a rule's lines on the page.
`findings` has the shared functions, `links` and `mounts` those for links and mounts.
"""
