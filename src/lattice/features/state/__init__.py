"""The agreed state as its administrators see it: quorum, backups, restoring them.

Data path    command ─► operations ─► wiring ─┬─ quorum: asks every member of etcd.
                                              └─ backups ─► port ObjectStore: a folder, or S3.
             schedule ─► one replica claims the turn by compare-and-swap ─► backups.
             lattice-server restore, move ─► state_import ─► port StateStore.
Bounds       A backup is one reading of all keys, so of one revision. Parts of 4 MiB; keys under a
             lease are left out. One backup at a time in a server.
When down    Without the state store nothing is backed up (503). Without the object store neither;
             a scheduled backup is tried again after ten minutes, and doctor names its age. A
             server never writes over a state that exists: it names the steps instead.
Promises     OPS-2, OPS-3.
"""
