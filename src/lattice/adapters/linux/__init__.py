"""The Linux of a compute node, read: which jobs run here and which processes are theirs.

    naming.py    what Slurm calls folders, sockets, daemons     groups.py   where they are
    proc.py      processes                                      reading.py  one job's group, read
    inotify.py   notices of the kernel                          spool.py    the second sign
    lookout.py   one turn of looking                            listener.py who is told
    nodejobs.py  `NodeJobs`: the picture, kept

Data path: inotify on the control groups and the spool → the folders that moved are read → the new
picture is compared with the old → events. Bounds: 4 096 jobs, 32 768 processes a job, a fifth of
one CPU in a storm, nothing at rest but one reading a minute. Without notices (the kernel's limits)
everything is read every 3 s; without control groups the spool tells jobs and steps; without a
spool folder only that second sign is missing.

Needs no privilege and changes nothing. Names of folders and processes are hostile: parsed whole or
left alone. `python -m lattice.adapters.linux` shows on a node what is seen.
"""
