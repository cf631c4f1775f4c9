"""Slurm, read: the adapter behind the port `Scheduler`.

    rest.py      one bounded question to slurmrestd           commands.py  scontrol, sacctmgr
    exchange.py  the HTTP under it                            topology.py  switches
    dialect.py   which schema version is spoken               schema/      one decoder a version
    answer.py    the envelope of an answer, errors[] and all  reasons.py   codes → words
    polling.py   the job list, cheaply and incrementally      placing.py   tenant and vCluster
    past.py      slurmdbd                                     accounts.py  tenants, coordinators
    attempts.py  accounting rows → allocations                mirror.py    `SlurmScheduler`
    origins.py   first submit times of requeued jobs

Data path: slurmrestd → raw records → `Allocation`s held in memory → every reader. Readers never
wait for Slurm. Bounds: one question at a time to slurmctld and four to slurmdbd, answers bounded
in size and time, polling at most a tenth of the time. When slurmctld is away the last reading
stays and ages; when slurmdbd is away `past` raises `Unavailable` and tenants stay as last read.

Nothing here changes anything in Slurm. All text from Slurm is hostile: it is bounded and never
interpreted, and control characters stay in it for the renderers to make inert.
"""
