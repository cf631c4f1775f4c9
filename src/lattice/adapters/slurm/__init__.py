"""The adapter for Slurm behind the port `Scheduler`, and behind smaller ports for jobs and nodes.

    scheduler.py     `SlurmScheduler`.
    rest.py          One request to slurmrestd, with limits.
    http_client.py   The HTTP below it.
    dialect.py       Which schema version is used.
    schema/          One decoder for all versions.
    answer.py        The envelope of an answer, with errors[].
    poller.py        slurmrestd's lists of jobs and nodes, read incrementally.
    job_list.py      The list of jobs: slurmrestd's, or the one of `squeue` if it is long.
    squeue_list.py   The list of `squeue`.
    squeue_records.py  Its jobs: only rows that changed are decoded.
    row_blocks.py    Which rows changed.
    row_details.py   What a row lacks, by the job's id.
    user_readings.py The jobs of single users, in between.
    job_records.py   One job from slurmrestd.
    topology.py      Switches.
    exit_codes.py    Exit codes that slurmrestd does not have.
    accounting.py    slurmdbd.
    attempts.py      Folds accounting rows into allocations.
    first_submit.py  First submit times of requeued jobs.
    accounts.py      Tenants and coordinators.
    tenancy.py       Tenant and vCluster of a job.
    reasons.py       The texts for reason codes.
    gres.py          GPUs of a job.
    commands.py      scontrol, sacctmgr, sacct, squeue.
    job_details.py   Output files of a job, and what an attempt used.
    operator.py      Drains and resumes nodes.

    command_exchange.py   slurmrestd's answers from commands, for a caller without a server.
    command_scheduler.py  `CommandScheduler`, which sees that caller's jobs.

Data path: slurmrestd gives raw records. They become `Allocation`s in memory, which all readers use.
Readers never wait for Slurm.

Limits: one poll of jobs and one of nodes at a time, and four requests to slurmdbd. Answers are
limited in size and time. Polling takes at most a tenth of the time, by `squeue` half. While
slurmctld is down the last reading stays and ages. While slurmdbd is down `past` raises
`Unavailable`, and tenants stay as last read.

Only `operator.py` changes anything in Slurm. All text from Slurm is untrusted. It is limited in
length and never interpreted. Renderers must remove its control characters.
"""
