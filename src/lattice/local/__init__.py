"""Lattice without a server: the caller's own jobs, by Slurm's commands and the caller's rights.

    client.py        Carries out the calls that otherwise go to a server.
    output_files.py  Which files a job's script writes, and whether they are here.
    log_files.py     Their lines as records.
    log_choice.py    Which lines are shown.
    top.py           What a job uses, as `top` shows it.
    probe_step.py    A step in the job that measures it: `srun --overlap`.
    probe_script.py  What that step runs, and how its text becomes readings.

Data path    command ─► call ─► LocalClient ─┬─► squeue, sacct ─► AllocationService ─► answer.
                                             ├─► the job's own file ─► records.
                                             └─► srun ─► sh on the job's nodes ─► snapshots ─► rows.
Rights       Everything runs as the caller. Nothing here has, takes or asks for more.
Bounds       Only the caller's own jobs. No times of old lines, no files of `srun --output`, no past
             of figures, no I/O latency. What is not known is said, with the reason.
When down    slurmctld: past jobs are shown, and a note says what is missing. slurmdbd: live ones.
Loaded       By name, and only with `--local`: it costs the other commands nothing.
Promises     TRY-3, SRC-2.
"""
