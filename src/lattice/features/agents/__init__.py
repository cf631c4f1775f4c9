"""Agents: the certificates by which nodes speak, from the first token to the last revocation.

Data path    admin ─ one-time token ─► node ─ its own key, a signing request ─► server signs
             node ─ certificate ─► agents' listener ─► admitted ─► Renew at two thirds of its life
Bounds       a token works once, for one node, for an hour; stored as SHA-256. Enrolment is public,
             so it is held to a rate for all together, and every refusal is the same answer.
             A certificate lives a day; a revocation holds against every one before it at once.
When down    without agreed state nobody can enrol, be revoked or restored; certificates are
             renewed and checked against the last reading. A server that never had one admits none.
Promises     AUTH-9.
"""
