"""`lattice-server setup`: finds Slurm, and writes what a server on this machine needs.

Data path    Slurm's commands ─► facts ─► answers of a person or of flags ─► files.
Bounds       It writes below /etc/lattice, /etc/default and the state folder, and nothing else. It
             never replaces a file that is there. The one change in Slurm, a right of the server's
             account, is made only with --operator.
When down    Without slurmctld it writes nothing, and names what did not answer.
Promises     OPS-8.
"""
