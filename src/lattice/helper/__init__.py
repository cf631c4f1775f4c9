"""The only code that ever runs as root: narrow verbs on a unix socket.

    asker ─ packet (grant, question, descriptors) ─► listen ─ judged ─► one child a question
                                                                           │ few capabilities
                                                                           ▼
                                                             a process that is the user, wholly

Two roles: `node` beside the agent, `gate` beside the server. A helper of one role has no verb of
the other. It imports the standard library, `cryptography` for signatures, and the few pure
modules that say what a grant and a question are; a test holds that.

For a terminal in a job (`attaching`) a holder is left behind, which outlives the helper and has
one capability: to send signals.

It runs no path from outside but as the user it belongs to, keeps no key but public ones, talks to
no network, and drops every capability its role does not need before it listens.
"""
