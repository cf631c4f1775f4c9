"""Identity: signing in and out, and who the server takes the caller for.

Data path    discovery (public) ─► CLI ─ PKCE | device | manual ─► identity provider ─► tokens
             token ─► server (verified, then read by lattice.access) ─► whoami
Bounds       tokens live in one file a server, mode 0600, or in the keyring; a refresh is done by
             one process at a time, over all hosts that share the home.
When down    the provider: tokens hold until they expire; keys already fetched go on being used.
Promises     AUTH-1, AUTH-3, AUTH-11.
"""
