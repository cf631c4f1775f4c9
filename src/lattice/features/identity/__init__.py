"""Identity: sign-in, sign-out, and the caller as the server sees it.

Data path    discovery (public) ─► CLI ─ PKCE | device | manual ─► identity provider ─► tokens.
             token ─► server (verified, then read by lattice.access) ─► whoami.
             Unix user ─ MUNGE credential | Slurm token ─► server ─► its own token.
Bounds       Tokens are in one file per server, mode 0600, or in the keyring. One process at a time
             refreshes them, over all hosts that share the home directory.
When down    The provider: tokens are valid until they expire, and the server keeps using the keys
             it has fetched.
Promises     AUTH-1, AUTH-3, AUTH-11, TRY-4.
"""
