"""Submit and cancel: the real `sbatch` and `scancel`, run as the caller.

Data path    command ─► api ─► http | rpc ─► service ─► port SubmitGate ─► the root helper beside
             the server ─► sbatch, as the user, in her login environment ─► slurmctld
Bounds       a script of 4 MiB, 256 words of 32 KiB, 64 variables; 8 submissions at once; 30 s.
When down    without a gate nothing is submitted and the answer says so; a program that did not
             answer in time leaves it open, and the answer says that too.
Twice        with an idempotency key a repeated call gives the same allocation: claimed in the
             state store before the act, told there after it, and marked in the job's comment, so
             that a crash between the two can be mended by looking.
Promises     ALLOC-3, ALLOC-4, AUTH-12.
"""
