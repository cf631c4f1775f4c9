"""Health: whether the server is well, its own figures, and the description of its interface.

Data path    process ─► service ─► http | rpc; nothing of a caller's work passes here.
Bounds       health is public and says a word on the server and one on its agreed state; figures
             need a role.
When down    then nobody answers, which is the answer.
Promises     AUTH-6.
"""
