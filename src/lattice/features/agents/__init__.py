"""Agents: node certificates, from the first token to revocation.

Data path    An admin gives a node a one-time token. The node sends its signing request; the
             server signs it. The agent renews its certificate at two thirds of its life.
Bounds       A token works once, for one node, for an hour by default. The store has its SHA-256.
             Enrolment is public, so one rate limit covers all callers, and every refusal is the
             same answer. A certificate lives a day by default. A revocation refuses every
             certificate from before it, at once.
When down    Without the state store nobody can enrol, be revoked or restored. The server renews and
             checks certificates against its last snapshot. Without a snapshot it admits no node.
Promises     AUTH-9.
"""
