"""Submit and cancel: `sbatch` and `scancel`, run as the caller.

Data path    command ─► operations ─► REST | gRPC ─► service ─► port SubmitGate ─► the root
             helper beside the server ─► sbatch ─► slurmctld. The helper runs sbatch as the user,
             in a login environment.
Bounds       A script of 4 MiB, 256 words of 32 KiB, 64 variables; 8 submissions at once; 30 s.
When down    Without a gate nothing is submitted, and the answer says so. If a program does not
             answer in time, nobody knows whether it acted, and the answer says that too.
Twice        With an idempotency key a repeated call returns the same allocation. The state store
             has the claim before the act and the job id after it. The job's comment has the key's
             mark. So after a crash between the two, the next call finds the job by its mark.
Promises     ALLOC-3, ALLOC-4, AUTH-12.
"""
