"""The Linux of a compute node: which jobs run here, and which processes are theirs.

    slurm_names.py        Slurm's names of folders, sockets and daemons.
    groups.py             Where Slurm's control groups are.
    job_group_reader.py   Reads one job's group.
    proc.py               Processes.
    inotify.py            Notices of the kernel.
    scanner.py            One scan of the node, and the spool.
    nodejobs.py           `NodeJobs`: the current snapshot.

Data path: inotify reports changed folders of the control groups and the spool. The scanner reads
them and compares the new snapshot with the old one, which gives events.

Limits: 4 096 jobs, 32 768 processes a job, a fifth of one CPU under load. At rest there is one scan
a minute. Without inotify (the kernel's limits) everything is read every 3 s. Without control groups
the spool shows jobs and steps. Without a spool folder only that second sign is missing.

It needs no privilege and changes nothing. Names of folders and processes are untrusted: a name that
does not match completely is ignored. `python -m lattice.adapters.linux` prints what it sees.
"""
